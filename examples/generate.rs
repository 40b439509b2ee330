//! A language model goes on from a text, several at once, and answers in a chat: `cargo run --release --example generate`.

use sconce_engine::{ChatOptions, Event, Llm, LoadOptions, Message, Request, Start};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "smollm".into());
    let llm = Llm::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    // Requests run together: each step of the model computes the next token of every answer.
    let of = |text: &str| Request { start: Start::Text(text.into()), max_tokens: Some(12), ..Request::default() };
    for generation in llm.generate(&["The capital of France is", "Water boils at"].map(of)) {
        println!("{}", generation?.answers[0].text.trim());
    }

    // A chat, as it comes.
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
