//! What was said.

use crate::Failure;
use crate::sink::Sink;
use sconce_engine::Message;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Files beyond this hold no conversation that a person had.
const LARGEST: u64 = 64 << 20;

/// What was said, and how the model should behave.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) system: Option<String>,
    said: Vec<Message>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Conversation {
        Conversation { system, said: Vec::new() }
    }

    /// The least there is to say, to see whether a model can be talked to.
    pub(super) fn probe() -> Conversation {
        Conversation { system: None, said: vec![Message::new("user", "Hello")] }
    }

    /// All of it, as the model reads it.
    pub(super) fn messages(&self) -> Vec<Message> {
        let system = self.system.as_deref().map(|text| Message::new("system", text));
        system.into_iter().chain(self.said.iter().cloned()).collect()
    }

    /// Messages besides the system's.
    pub(super) fn len(&self) -> usize {
        self.said.len()
    }

    pub(super) fn ask(&mut self, text: &str) {
        self.said.push(Message::new("user", text));
    }

    pub(super) fn answered(&mut self, text: &str) {
        self.said.push(Message::new("assistant", text));
    }

    /// Forgets everything but how the model should behave.
    pub(super) fn clear(&mut self) {
        self.said.clear();
    }

    /// Forgets the last question and what came after it.
    pub(super) fn undo(&mut self) -> bool {
        match self.said.iter().rposition(|m| m.role() == "user") {
            Some(at) => {
                self.said.truncate(at);
                true
            }
            None => false,
        }
    }

    /// Forgets what came after the last question, so that it can be answered again.
    pub(super) fn reopen(&mut self) -> bool {
        match self.said.iter().rposition(|m| m.role() == "user") {
            Some(at) => {
                self.said.truncate(at + 1);
                true
            }
            None => false,
        }
    }

    /// Writes it as JSON that [`Conversation::load`] reads, as `sconce generate --jsonl` and servers do too.
    pub(super) fn save(&self, path: &Path) -> Result<(), Failure> {
        let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
        let mut sink = Sink::open(Some(path), false).map_err(failed)?;
        writeln!(sink, "{:#}", json!({"messages": self.messages()})).map_err(failed)?;
        Ok(sink.finish().map_err(failed)?)
    }

    /// Reads one that was saved.
    pub(super) fn load(path: &Path) -> Result<Conversation, Failure> {
        let failed = |what: String| format!("{}: {what}", path.display());
        let size = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
        if size > LARGEST {
            return Err(failed(format!("{size} bytes are no conversation")).into());
        }
        let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
        let all: Value = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
        let messages = all.get("messages").cloned().unwrap_or(all);
        let mut said: Vec<Message> = serde_json::from_value(messages).map_err(|e| failed(e.to_string()))?;
        let system = match said.first() {
            Some(first) if first.role() == "system" => first.get("content").and_then(Value::as_str).map(String::from),
            _ => None,
        };
        if system.is_some() {
            said.remove(0);
        }
        Ok(Conversation { system, said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken() -> Conversation {
        let mut c = Conversation::new(Some("Be brief.".into()));
        for (question, answer) in [("one?", "1"), ("two?", "2")] {
            c.ask(question);
            c.answered(answer);
        }
        c
    }

    #[test]
    fn what_was_said_can_be_undone_and_asked_again() {
        let mut c = spoken();
        assert!(c.reopen());
        assert_eq!((c.len(), c.messages().last().unwrap().role()), (3, "user"));
        c.answered("zwei");
        assert!(c.undo());
        assert_eq!(c.len(), 2);
        assert!(c.undo() && !c.undo() && !c.reopen());
        assert_eq!(c.messages(), [Message::new("system", "Be brief.")]);
        let mut c = spoken();
        c.clear();
        assert_eq!((c.len(), c.system.as_deref()), (0, Some("Be brief.")));
    }

    #[test]
    fn what_is_saved_comes_back_and_what_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("talk.json");
        spoken().save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), spoken());
        for (text, why) in [("{", "EOF"), ("{\"messages\": 3}", "expected a sequence"), ("[{}]", "needs a role")] {
            std::fs::write(&path, text).unwrap();
            let e = Conversation::load(&path).unwrap_err().to_string();
            assert!(e.contains("talk.json") && e.contains(why), "{e}");
        }
        assert!(Conversation::load(&dir.path().join("absent")).unwrap_err().to_string().contains("absent"));
    }
}
