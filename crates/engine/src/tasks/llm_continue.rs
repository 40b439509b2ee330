//! Prompts that end within the last message, which the answer continues.
//!
//! What the template writes behind a message would end the answer. A mark behind the message's text
//! shows where that begins: the text alone does not, because a `<` is also in `</s>`.

use crate::error::{Error, Result};
use sconce_text::chat::Message;
use serde_json::{Map, Value};

/// Characters for private use, which no text has by chance.
const MARK: &str = "\u{f8ff}\u{f8fe}\u{f8ff}";

/// The messages, with the mark behind the text of the last.
pub(super) fn marked(messages: &[Message]) -> Result<Vec<Message>> {
    let content = messages.last().and_then(|last| last.get("content")).and_then(Value::as_str);
    let content = content.unwrap_or_default().trim_end();
    if content.trim_start().is_empty() {
        return Err(Error::Input("the last message has no text that an answer could continue".into()));
    }
    let content = content.to_owned() + MARK;
    let mut messages = messages.to_vec();
    if let Some(last) = messages.pop() {
        let mut fields = Map::from(last);
        fields.insert("content".into(), content.into());
        messages.push(Message::try_from(fields).map_err(Error::Input)?);
    }
    Ok(messages)
}

/// The prompt in front of the mark.
pub(super) fn cut(mut text: String) -> Result<String> {
    match text.rfind(MARK) {
        Some(at) => {
            text.truncate(at);
            Ok(text)
        }
        None => {
            let what = "the chat template leaves out the text of the last message, so no answer can continue it";
            Err(Error::Input(what.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continued_prompt_ends_with_the_last_message() {
        let of = |content: &str| {
            let messages = marked(&[Message::new("user", "a <"), Message::new("assistant", content)])?;
            let text: Vec<&str> = messages.iter().filter_map(|message| message.get("content")?.as_str()).collect();
            cut(format!("<user>{}</s><assistant>{}</s>\n", text[0], text[1].trim()))
        };
        assert_eq!(of("b c ").unwrap(), "<user>a <</s><assistant>b c");
        // What stands behind the message, too.
        for text in ["<", "s>", "</s>", "\u{f8ff}"] {
            assert_eq!(of(text).unwrap(), format!("<user>a <</s><assistant>{text}"));
        }
        assert!(of(" ").unwrap_err().to_string().contains("no text"));
        assert!(cut("<user>a</s>".into()).unwrap_err().to_string().contains("leaves out"));
        assert!(marked(&[]).is_err());
    }
}
