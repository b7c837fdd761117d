//! The worker binary: assembles nothing itself, see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    sanctum_mlx::cli::main()
}
