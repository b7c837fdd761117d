// The host op: see host_op.cpp.
