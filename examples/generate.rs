//! Text completion of several prompts at once, and a streamed chat: `cargo run --release --example
//! generate`.

use sconce::{ChatOptions, Event, Llm, LoadOptions, Message, Request, Start};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "smollm".into());
    let llm = Llm::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    // Requests are batched: each step of the model computes the next token of every sequence.
    let of = |text: &str| Request { start: Start::Text(text.into()), max_tokens: Some(12), ..Request::default() };
    for generation in llm.generate(&["The capital of France is", "Water boils at"].map(of)) {
        println!("{}", generation?.answers[0].text.trim());
    }

    // A streamed chat completion.
    let messages = [Message::new("user", "Name three colours.")];
    let request = Request { max_tokens: Some(40), ..Request::default() };
    for event in llm.chat(&messages, &ChatOptions::default(), &request)? {
        if let Event::Text { text, .. } = event? {
            print!("{text}");
            std::io::stdout().flush()?;
        }
    }
    println!();
    Ok(())
}
