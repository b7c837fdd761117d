// A host op: a node of MLX's lazy graph whose work is done by a closure of the Rust side (src/host_op.rs).
//
// This header is the whole interface between the two; src/host_op.rs repeats it as Rust declarations. All functions
// are plain C, throw nothing, and may be called from any thread, though the graph belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// An array while the closure runs: row-major, without gaps. `data` is aligned to 8 bytes, no more.
// `dtype` is the value of mlx_dtype. An input that became output 0 (see sanctum_host_op.in_place) has a null `data`.
struct sanctum_tensor {
  void* data;
  const int32_t* shape;
  int32_t ndim;
  int32_t dtype;
  size_t nbytes;
};

// Sets the message of a failing closure: `length` bytes of UTF-8, copied.
void sanctum_host_op_fail(void* failure, const char* message, size_t length);

// The closure: 0, or anything else after sanctum_host_op_fail(failure, ...). Must not unwind.
typedef int (*sanctum_host_fn)(
    void* closure,
    const sanctum_tensor* inputs,
    size_t input_count,
    sanctum_tensor* outputs,
    size_t output_count,
    void* failure);

struct sanctum_output {
  const int32_t* shape;
  int32_t ndim;
  int32_t dtype; // a value of mlx_dtype
};

struct sanctum_host_op {
  const char* name; // lives for ever
  sanctum_host_fn call;
  void* closure;
  void (*drop)(void* closure); // called exactly once, on whatever thread lets go last
  // The input whose content output 0 holds when the closure starts, or -1. Its buffer is taken over where nobody else
  // needs it, and copied otherwise. It must have output 0's shape and type.
  int32_t in_place;
};

// The layout of mlx_array in mlx-c.
struct sanctum_array {
  void* ctx;
};

// Adds the op to the graph, on this thread's default CPU stream, and fills `results` with new handles.
// Takes the closure over in every case. Returns 0, or 1 with a message of at most `error_size` bytes, NUL included.
int sanctum_host_op_apply(
    const sanctum_host_op* op,
    const sanctum_array* inputs,
    size_t input_count,
    const sanctum_output* outputs,
    size_t output_count,
    sanctum_array* results,
    char* error,
    size_t error_size);

} // extern "C"
