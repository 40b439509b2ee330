//! `/v1/responses`: requests, items, responses and the events of a streamed response.

pub mod events;
pub mod input;
pub mod output;
pub mod request;
pub mod response;
