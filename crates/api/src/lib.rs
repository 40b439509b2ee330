//! Wire types and error codes of the dialects that Sconce speaks. Data only: no engine, no HTTP.

pub mod openai;
