//! Brings mlx-sys's own bindgen settings in, so that our bindings are those its build script would write.

use std::{env, fs, path::Path};

fn main() {
    println!("cargo::rerun-if-env-changed=MLX_SYS_DIR");
    let source = env::var("MLX_SYS_DIR").expect("MLX_SYS_DIR names the unpacked mlx-sys crate");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let from = Path::new(&source).join("src/bindgen_config.rs");
    fs::copy(&from, Path::new(&out).join("bindgen_config.rs")).expect("copy bindgen_config.rs");
}
