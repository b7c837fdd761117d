//! MLX on this host, and the blocks of the models. The only crate with `unsafe`.
