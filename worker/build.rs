//! Tells the dynamic loader where libmlx lies: beside an installed binary, else in the build cache.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(libdir) = std::env::var("DEP_KERNELS_LIBDIR") {
        println!(
            "cargo::rustc-link-arg=-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib/sanctum/cpu/mlx/lib:{libdir}"
        );
    }
}
