//! `sanctum-mlx doctor`: what this host computes on.
//!
//! Prints facts of the loaded MLX and the CPU, for people or as JSON. It judges nothing: `sanctum doctor` does.

use std::io::{self, Write};

use sanctum_kernels::{KernelError, device};
use serde_json::{Map, Value, json};

/// Why there is nothing to print.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// MLX does not answer.
    #[error("MLX does not answer")]
    Mlx(#[from] KernelError),
    /// Standard output is closed.
    #[error("cannot write")]
    Write(#[from] io::Error),
}

/// Prints the facts, as JSON if `as_json`.
///
/// # Errors
/// If MLX does not answer or standard output is closed.
pub fn run(as_json: bool) -> Result<(), DoctorError> {
    let facts = facts()?;
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{}", Value::Object(facts))?;
        return Ok(());
    }
    for (name, value) in &facts {
        writeln!(out, "{name:<16} {}", plain(value))?;
    }
    Ok(())
}

fn facts() -> Result<Map<String, Value>, KernelError> {
    let device: Map<String, Value> =
        device::facts()?.into_iter().map(|(name, value)| (name, value.into())).collect();
    let memory = device::memory_use()?;
    let facts = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mlx": device::mlx_version()?,
        "compute": device::compute()?.to_string(),
        "libmlx": device::library_path(),
        "cpu_features": device::cpu_features(),
        "threads": std::thread::available_parallelism().map_or(1, usize::from),
        "device": device,
        "mlx_active_bytes": memory.active_bytes,
    });
    match facts {
        Value::Object(facts) => Ok(facts),
        _ => Ok(Map::new()),
    }
}

/// A fact in one line.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Object(map) => {
            let pairs = map.iter().map(|(name, value)| format!("{name}={}", plain(value)));
            pairs.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_name_the_pinned_mlx() {
        let facts = facts().expect("MLX answers");
        assert_eq!(facts["mlx"], "0.32.2");
        assert!(facts["cpu_features"].is_array());
    }

    #[test]
    fn every_kind_of_fact_fits_a_line() {
        let value = json!({"a": ["x", 1], "b": null});
        assert_eq!(plain(&value), "a=x 1 b=-");
    }
}
