//! From an admitted request to the last byte of its reply.
//!
//! In order: [`attempt`] tries URLs until content flows, [`inspect`] and [`event`] say what a backend's bytes mean,
//! [`relay`] passes them on, [`wait`] keeps a client patient meanwhile. [`trail`] has the last word when nobody
//! answers, [`headers`] says which headers cross.

mod attempt;
mod event;
pub(crate) mod headers;
mod inspect;
mod relay;
mod trail;
mod wait;

pub(crate) use attempt::{Answer, Job, Refusal};
pub(crate) use wait::{KEEP_ALIVE, ReplyBody, Search};
