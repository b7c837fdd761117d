//! The models list: the union of what clients of both families read.
//!
//! Made from what is already in memory, so that it answers whatever the load.

use serde::Serialize;

use super::timestamp::Civil;

/// One model (or seat) as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The name requests use.
    pub id: String,
    /// Since when it is served, in Unix seconds.
    pub created: u64,
    /// Who serves it.
    pub owned_by: String,
    /// Most tokens of prompt and completion together, where known.
    pub context_length: Option<usize>,
}

impl Model {
    /// The JSON object of one model.
    pub fn to_json(&self) -> String {
        json(&self.wire())
    }

    fn wire(&self) -> Wire<'_> {
        let context = self.context_length;
        Wire {
            id: &self.id,
            object: "model",
            created: self.created,
            owned_by: &self.owned_by,
            max_model_len: context,
            context_length: context,
            max_input_tokens: context,
            meta: context.map(|n_ctx| Meta { n_ctx }),
            kind: "model",
            display_name: &self.id,
            created_at: Civil::from_unix(self.created).rfc3339(),
        }
    }
}

/// The JSON list of `models`, in the order given.
pub fn list_json(models: &[Model]) -> String {
    json(&List {
        object: "list",
        data: models.iter().map(Model::wire).collect(),
        first_id: models.first().map(|model| model.id.as_str()),
        last_id: models.last().map(|model| model.id.as_str()),
        has_more: false,
    })
}

fn json(value: &impl Serialize) -> String {
    // Strings and numbers only: nothing here can fail to serialise.
    serde_json::to_string(value).unwrap_or_default()
}

#[derive(Serialize)]
struct Wire<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_input_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Meta>,
    #[serde(rename = "type")]
    kind: &'static str,
    display_name: &'a str,
    created_at: String,
}

#[derive(Serialize)]
struct Meta {
    n_ctx: usize,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Wire<'a>>,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn a_model_carries_what_every_client_reads() {
        let model = Model {
            id: "smollm2".into(),
            created: 951_782_400,
            owned_by: "sanctum".into(),
            context_length: Some(2048),
        };
        assert_eq!(
            parsed(&model.to_json()),
            json!({
                "id": "smollm2", "object": "model", "created": 951_782_400, "owned_by": "sanctum",
                "max_model_len": 2048, "context_length": 2048, "max_input_tokens": 2048,
                "meta": {"n_ctx": 2048}, "type": "model", "display_name": "smollm2",
                "created_at": "2000-02-29T00:00:00Z",
            })
        );
    }

    #[test]
    fn the_list_names_its_ends() {
        let model = |id: &str| Model {
            id: id.into(),
            created: 0,
            owned_by: "sanctum".into(),
            context_length: None,
        };
        let list = parsed(&list_json(&[model("a"), model("b")]));
        assert_eq!((&list["first_id"], &list["last_id"]), (&json!("a"), &json!("b")));
        assert_eq!((&list["has_more"], &list["object"]), (&json!(false), &json!("list")));
        assert_eq!(list["data"].as_array().map(Vec::len), Some(2));
        let empty = parsed(&list_json(&[]));
        assert_eq!((&empty["first_id"], &empty["data"]), (&Value::Null, &json!([])));
    }
}
