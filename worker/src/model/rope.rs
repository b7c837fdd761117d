//! The rotary embedding that `config.json` describes, in any of the ways it is written there.
//!
//! `rope_theta` stands at the top or in `rope_parameters`; scaling in `rope_scaling` or `rope_parameters`, its kind
//! under `rope_type` or `type`. What is written at the top wins. Refused: kinds that the kernels do not have.

use sanctum_kernels::rope::{Rope, RopeScaling, RopeSpec};

use crate::load::{Fields, LoadError};

/// Reads the rotary embedding for heads of `head_dim`; `theta` is the family's default base.
pub(super) fn rope(config: &Fields, head_dim: usize, theta: f64) -> Result<Rope, LoadError> {
    let parameters = config.object("rope_parameters")?;
    let number = |name: &str| -> Result<Option<f64>, LoadError> {
        match config.optional(name)? {
            Some(found) => Ok(Some(found)),
            None => parameters.as_ref().map_or(Ok(None), |fields| fields.optional(name)),
        }
    };
    let spec = RopeSpec {
        head_dim,
        partial: number("partial_rotary_factor")?.unwrap_or(1.0),
        theta: number("rope_theta")?.unwrap_or(theta),
        scaling: match config.object("rope_scaling")?.or_else(|| parameters.clone()) {
            Some(fields) => scaling(&fields)?,
            None => RopeScaling::None,
        },
    };
    let mut rope = Rope::from_spec(&spec)
        .map_err(|error| config.wrong("rope_scaling or rope_theta", error.to_string()))?;
    rope.traditional = config.or("rope_traditional", false)?;
    Ok(rope)
}

fn scaling(fields: &Fields) -> Result<RopeScaling, LoadError> {
    let kind = match fields.optional::<String>("rope_type")? {
        Some(kind) => Some(kind),
        None => fields.optional::<String>("type")?,
    };
    let original = "original_max_position_embeddings";
    match kind.as_deref() {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: fields.required("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: fields.required("factor")?,
            low_freq_factor: fields.or("low_freq_factor", 1.0)?,
            high_freq_factor: fields.or("high_freq_factor", 4.0)?,
            original_max_positions: fields.or(original, 8192.0)?,
        }),
        Some("yarn" | "deepseek_yarn") => Ok(RopeScaling::Yarn {
            factor: fields.required("factor")?,
            original_max_positions: fields.or(original, 4096.0)?,
            beta_fast: fields.or("beta_fast", 32.0)?,
            beta_slow: fields.or("beta_slow", 1.0)?,
            mscale: fields.or("mscale", 1.0)?,
            mscale_all_dim: fields.or("mscale_all_dim", 0.0)?,
        }),
        Some(other) => Err(fields.wrong(
            "rope_type",
            format!("`{other}` is not supported, only default, linear, llama3 and yarn"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(json: &str) -> Result<Rope, LoadError> {
        let map = serde_json::from_str(json).expect("test JSON");
        rope(&Fields::new(Path::new("config.json"), map), 8, 10_000.0)
    }

    #[test]
    fn theta_and_scaling_are_found_wherever_they_stand() {
        let at_top = read(r#"{"rope_theta": 5e5}"#).expect("sound");
        let nested = read(r#"{"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}"#);
        assert_eq!(at_top, nested.expect("sound"));
        assert_ne!(at_top, read("{}").expect("sound"));
        let old = read(r#"{"rope_scaling": {"type": "linear", "factor": 2.0}}"#).expect("sound");
        let new = read(r#"{"rope_parameters": {"rope_type": "linear", "factor": 2.0}}"#);
        assert_eq!(old, new.expect("sound"));
        assert_eq!(old.periods[0], 2.0);
        let null = read(r#"{"rope_scaling": null, "rope_traditional": true}"#).expect("sound");
        assert!(null.traditional);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let message = |json: &str| read(json).expect_err("refused").to_string();
        assert!(message(r#"{"rope_scaling": {"type": "dynamic"}}"#).contains("`dynamic`"));
        assert!(message(r#"{"rope_scaling": {"type": "yarn"}}"#).contains("rope_scaling.factor"));
        assert!(message(r#"{"rope_theta": -1.0}"#).contains("theta"));
    }
}
