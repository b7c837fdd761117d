//! The operator's command. Everything is in [`sanctum_router::cli`].

fn main() -> std::process::ExitCode {
    sanctum_router::cli::main()
}
