//! OpenAI's wire: errors, request and reply types, the models list.
//!
//! Owns shapes and ranges. It knows no model and no backend; what a checkpoint can do is the worker's to say.

pub mod error;
