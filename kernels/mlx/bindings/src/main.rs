//! `sanctum-mlx-bindings MLX_C_DIR OUT.rs [CLANG_ARG...]`: writes the Rust declarations of mlx-c.
//!
//! Run by `setup.sh` only. It owns no settings: those are mlx-sys's.

use std::env::args;
use std::path::Path;

#[allow(dead_code, reason = "mlx-sys's file also serves its own build script")]
mod bindgen_config {
    include!(concat!(env!("OUT_DIR"), "/bindgen_config.rs"));
}

fn main() {
    let args: Vec<String> = args().collect();
    let [_, mlx_c, out, clang @ ..] = args.as_slice() else {
        panic!("usage: sanctum-mlx-bindings MLX_C_DIR OUT.rs [CLANG_ARG...]");
    };
    let root = Path::new(mlx_c);
    let headers = bindgen_config::discover_headers(root).expect("mlx-c's headers");
    bindgen_config::builder(root, &headers)
        .clang_args(clang)
        .generate()
        .expect("bindgen reads mlx-c's headers")
        .write_to_file(out)
        .expect("the bindings can be written");
}
