//! OpenAI's wire: errors, request and reply types, the models list.
//!
//! Owns shapes and ranges. It knows no model and no backend; what a checkpoint can do is the worker's to say.
//! A body goes through [`json::checked`] first, then through the request type, whose refusals name the field.

pub mod chat;
pub mod completions;
pub mod decoding;
pub mod error;
mod fields;
pub mod json;
pub mod message;
pub mod models;
pub mod reply;
pub mod timestamp;
pub mod tokens;
