//! Seats: the roles that callers name, and the order in which backends may answer for each.

use std::sync::Arc;

use serde::Serialize;

use super::Backend;

/// A role that callers name as their `model`.
#[derive(Debug, Clone, PartialEq)]
pub struct Seat {
    /// Its name; unique among seats, personas and second models.
    pub name: String,
    /// Aliases of the seat: another `model` name for the same thing.
    pub personas: Vec<String>,
    /// A preamble put before the caller's messages.
    pub system: Option<String>,
    /// Parameters for requests that do not give their own.
    pub defaults: Defaults,
    /// Who may answer, in order: the seat's own backends, then those of its fallback seats, depth first,
    /// none twice. Never empty.
    pub candidates: Vec<Candidate>,
    /// Another model that this seat offers under a name of its own.
    pub second_model: Option<SecondModel>,
}

/// One backend that may answer for a seat.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The backend.
    pub backend: Arc<Backend>,
    /// The seat whose backend it is: the seat asked for, or the fallback seat it comes from.
    pub seat: Arc<str>,
}

/// Another model of a seat, a worker of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SecondModel {
    /// The name that callers give.
    pub name: String,
    /// Who may answer, in order: its own backends only, since a fallback seat has another model.
    pub candidates: Vec<Candidate>,
}

/// What a `model` name in a request means.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The seat.
    pub seat: &'a Arc<Seat>,
    /// Who may answer, in order. Never empty.
    pub candidates: &'a [Candidate],
}

/// Sampling parameters of a seat; each applies where a request leaves it out. Ranges are those of the API.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Defaults {
    /// Most tokens of a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 to 2; 0 always takes the likeliest token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Probability mass kept, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Tokens kept; 0 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Least probability relative to the likeliest token, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Factor against tokens seen, above 0 to 10; 1 does nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// -2 to 2, per occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// -2 to 2, once per token seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Seed of the sampler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Defaults {
    /// Whether a seat sets nothing, so that a request passes untouched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Seat {
    /// Every name that means this seat or its second model, the seat's own first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str())
            .chain(self.personas.iter().map(String::as_str))
            .chain(self.second_model.iter().map(|second| second.name.as_str()))
    }

    pub(super) fn target<'a>(self: &'a Arc<Self>, model: &str) -> Option<Target<'a>> {
        if self.name == model || self.personas.iter().any(|persona| persona == model) {
            return Some(Target { seat: self, candidates: &self.candidates });
        }
        let second = self.second_model.as_ref().filter(|second| second.name == model)?;
        Some(Target { seat: self, candidates: &second.candidates })
    }
}
