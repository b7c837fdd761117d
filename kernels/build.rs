//! Compiles the host-op shim against MLX's headers and says where libmlx lies.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=cpp/host_op.cpp");
    println!("cargo::rerun-if-changed=cpp/host_op.h");
    println!("cargo::rerun-if-env-changed=DEP_MLX_LIBDIR");
    let include = env::var_os("DEP_MLX_INCLUDE").expect(
        "mlx-sys named no include directory: run kernels/mlx/setup.sh first (`make setup`)",
    );
    let mut shim = cc::Build::new();
    shim.cpp(true).std("c++20").file("cpp/host_op.cpp").flag_if_supported("-Wno-unused-parameter");
    for dir in env::split_paths(&include) {
        shim.flag("-isystem").flag(dir);
    }
    shim.compile("sanctum_host_op");

    // Only the links override (Linux) names a library directory; macOS links MLX statically.
    let Ok(libdir) = env::var("DEP_MLX_LIBDIR") else { return };
    println!("cargo::metadata=libdir={libdir}");
    println!("cargo::rustc-env=SANCTUM_MLX_LIBDIR={libdir}");
    // RUNPATH, not RPATH: with RPATH the loader would ignore LD_LIBRARY_PATH and with it the CUDA swap.
    println!("cargo::rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{libdir}");
    // Doctests receive no link arguments, but cargo puts search paths inside target/ on the loader's path.
    let link = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libmlx");
    let _ = fs::remove_file(&link);
    #[cfg(unix)]
    std::os::unix::fs::symlink(&libdir, &link).expect("a symlink under OUT_DIR");
    println!("cargo::rustc-link-search=native={}", link.display());
}
