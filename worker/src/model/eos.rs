//! Which tokens end a reply, as the checkpoint says.

use serde::Deserialize;

use crate::load::{Fields, LoadError};

/// JSON has one id or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

/// `eos_token_id` of `generation_config.json` if it names any, else of `config.json`.
pub(super) fn eos_token_ids(
    config: &Fields,
    generation: Option<&Fields>,
) -> Result<Vec<u32>, LoadError> {
    for fields in generation.into_iter().chain([config]) {
        match fields.optional("eos_token_id")? {
            Some(OneOrMany::One(id)) => return Ok(vec![id]),
            Some(OneOrMany::Many(ids)) => return Ok(ids),
            None => {}
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::new(Path::new("config.json"), serde_json::from_str(json).expect("test JSON"))
    }

    #[test]
    fn the_generation_config_goes_first() {
        let config = fields(r#"{"eos_token_id": 7}"#);
        let both = eos_token_ids(&config, Some(&fields(r#"{"eos_token_id": [1, 2]}"#)));
        assert_eq!(both.expect("sound"), [1, 2]);
        let silent = eos_token_ids(&config, Some(&fields(r#"{"eos_token_id": null}"#)));
        assert_eq!(silent.expect("sound"), [7]);
        assert_eq!(eos_token_ids(&fields("{}"), None).expect("sound"), [0u32; 0]);
        assert!(eos_token_ids(&fields(r#"{"eos_token_id": "x"}"#), None).is_err());
    }
}
