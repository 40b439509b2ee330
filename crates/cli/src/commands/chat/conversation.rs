//! Messages of a conversation.

use crate::Failure;
use crate::output_file::OutputFile;
use sconce_engine::Message;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;

/// Largest conversation file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The messages and the system prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) system: Option<String>,
    messages: Vec<Message>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Conversation {
        Conversation { system, messages: Vec::new() }
    }

    /// A minimal conversation, to check that a model has a chat template.
    pub(super) fn probe() -> Conversation {
        Conversation { system: None, messages: vec![Message::new("user", "Hello")] }
    }

    /// All messages, with the system prompt.
    pub(super) fn messages(&self) -> Vec<Message> {
        let system = self.system.as_deref().map(|text| Message::new("system", text));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    /// Number of messages without the system prompt.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn add_user(&mut self, text: &str) {
        self.messages.push(Message::new("user", text));
    }

    /// Adds an answer. The chat template decides whether its thought is part of later prompts.
    pub(super) fn add_assistant(&mut self, text: &str, thought: &str) {
        let mut message = Map::from(Message::new("assistant", text));
        if !thought.is_empty() {
            message.insert("reasoning_content".into(), thought.into());
        }
        // An object with a role and a text is a message.
        self.messages.extend(Message::try_from(message));
    }

    /// Removes all messages; the system prompt stays.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    /// Removes the last user message and everything after it.
    pub(super) fn undo(&mut self) -> bool {
        match self.messages.iter().rposition(|m| m.role() == "user") {
            Some(at) => {
                self.messages.truncate(at);
                true
            }
            None => false,
        }
    }

    /// Removes everything after the last user message, so that it can be answered again.
    pub(super) fn reopen(&mut self) -> bool {
        match self.messages.iter().rposition(|m| m.role() == "user") {
            Some(at) => {
                self.messages.truncate(at + 1);
                true
            }
            None => false,
        }
    }

    /// Writes JSON that [`Conversation::load`], `sconce generate --jsonl` and servers read.
    pub(super) fn save(&self, path: &Path) -> Result<(), Failure> {
        let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
        let mut file = OutputFile::open(Some(path), false).map_err(failed)?;
        writeln!(file, "{:#}", json!({"messages": self.messages()})).map_err(failed)?;
        Ok(file.finish().map_err(failed)?)
    }

    /// Reads a saved conversation.
    pub(super) fn load(path: &Path) -> Result<Conversation, Failure> {
        let failed = |what: String| format!("{}: {what}", path.display());
        let size = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
        if size > MAX_FILE_BYTES {
            return Err(failed(format!("{size} bytes; too large for a conversation")).into());
        }
        let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
        let all: Value = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
        let messages = all.get("messages").cloned().unwrap_or(all);
        let mut messages: Vec<Message> = serde_json::from_value(messages).map_err(|e| failed(e.to_string()))?;
        let system = match messages.first() {
            Some(first) if first.role() == "system" => first.get("content").and_then(Value::as_str).map(String::from),
            _ => None,
        };
        if system.is_some() {
            messages.remove(0);
        }
        Ok(Conversation { system, messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Conversation {
        let mut c = Conversation::new(Some("Be brief.".into()));
        for (question, answer) in [("one?", "1"), ("two?", "2")] {
            c.add_user(question);
            c.add_assistant(answer, "");
        }
        c
    }

    #[test]
    fn undo_reopen_and_clear_edit_the_conversation() {
        let mut c = sample();
        assert!(c.reopen());
        assert_eq!((c.len(), c.messages().last().unwrap().role()), (3, "user"));
        c.add_assistant("zwei", "");
        assert!(c.undo());
        assert_eq!(c.len(), 2);
        assert!(c.undo() && !c.undo() && !c.reopen());
        assert_eq!(c.messages(), [Message::new("system", "Be brief.")]);
        let mut c = sample();
        c.clear();
        assert_eq!((c.len(), c.system.as_deref()), (0, Some("Be brief.")));
    }

    #[test]
    fn saved_conversation_loads_and_invalid_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("talk.json");
        sample().save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), sample());
        for (text, why) in [("{", "EOF"), ("{\"messages\": 3}", "expected a sequence"), ("[{}]", "needs a role")] {
            std::fs::write(&path, text).unwrap();
            let e = Conversation::load(&path).unwrap_err().to_string();
            assert!(e.contains("talk.json") && e.contains(why), "{e}");
        }
        assert!(Conversation::load(&dir.path().join("absent")).unwrap_err().to_string().contains("absent"));
    }
}
