//! Wire types of Anthropic's Messages API.

pub mod error;
pub mod events;
pub mod message;
pub mod request;
