//! A conversation at the terminal.

use super::Session;
use super::conversation::Conversation;
use super::orders::{HELP, Order};
use crate::Failure;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::path::Path;
use std::process::ExitCode;

/// What a person typed.
#[derive(Debug, PartialEq)]
enum Entered {
    /// A message, or an order.
    Line(String),
    /// A message between `"""`, which is no order whatever it begins with.
    Block(String),
    Interrupted,
    End,
}

/// Talks until somebody leaves.
pub(super) fn converse(session: &mut Session, model: &str, history: &Path) -> Result<ExitCode, Failure> {
    let mut editor = DefaultEditor::new()?;
    // The first time there is none.
    let _ = editor.load_history(history);
    session.report.say(&format!("{model}; /help tells what can be done, Ctrl-D leaves"));
    let mut pressed = false;
    loop {
        let entered = enter(&mut |prompt| editor.readline(prompt))?;
        let again = std::mem::replace(&mut pressed, entered == Entered::Interrupted);
        let before = session.conversation.clone();
        let text = match entered {
            Entered::End => break,
            Entered::Interrupted if again => break,
            Entered::Interrupted => {
                session.report.say("Ctrl-C again, or Ctrl-D, leaves");
                continue;
            }
            Entered::Line(text) | Entered::Block(text) if text.trim().is_empty() => continue,
            Entered::Line(text) => {
                keep(&mut editor, &text, history, session);
                match Order::parse(&text) {
                    Some(Ok(Order::Quit)) => break,
                    Some(Ok(Order::Retry)) if session.conversation.reopen() => None,
                    Some(order) => {
                        // What went wrong with it is no reason to leave.
                        if let Err(e) = order.map_err(Failure::from).and_then(|order| obey(session, order)) {
                            session.report.error(&e.to_string());
                        }
                        continue;
                    }
                    None => Some(text),
                }
            }
            Entered::Block(text) => {
                keep(&mut editor, &text, history, session);
                Some(text)
            }
        };
        if let Some(text) = &text {
            session.conversation.ask(text);
        }
        session.interrupt.take();
        let answered = session.answer(&mut std::io::stdout()).and_then(|told| session.close(&told));
        match answered {
            Err(e) if crate::is_broken_pipe(&*e) => return Err(e),
            // What failed is as if it had not been asked.
            Err(e) => {
                session.conversation = before;
                session.report.error(&e.to_string());
            }
            Ok(()) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts a line into the history, here and on disk.
fn keep(editor: &mut DefaultEditor, text: &str, history: &Path, session: &Session) {
    let kept = editor.add_history_entry(text).and_then(|is_new| match is_new {
        true => {
            if let Some(dir) = history.parent() {
                std::fs::create_dir_all(dir)?;
            }
            editor.append_history(history)
        }
        false => Ok(()),
    });
    if let Err(e) = kept {
        session.report.warn(&format!("{}: {e}", history.display()));
    }
}

/// Reads a message, which may have several lines.
fn enter(read: &mut dyn FnMut(&str) -> rustyline::Result<String>) -> Result<Entered, Failure> {
    let mut line = |prompt: &str| match read(prompt) {
        Ok(line) => Ok(Ok(line)),
        Err(ReadlineError::Interrupted) => Ok(Err(Entered::Interrupted)),
        Err(ReadlineError::Eof) => Ok(Err(Entered::End)),
        Err(e) => Err(Failure::from(e)),
    };
    let mut text = match line("> ")? {
        Ok(first) => first,
        Err(other) => return Ok(other),
    };
    if let Some(block) = text.trim_start().strip_prefix("\"\"\"") {
        let mut block = block.to_string();
        loop {
            if let Some(whole) = block.trim_end().strip_suffix("\"\"\"") {
                return Ok(Entered::Block(whole.trim_matches('\n').to_string()));
            }
            match line("… ")? {
                Ok(next) => block = block + "\n" + &next,
                Err(other) => return Ok(other),
            }
        }
    }
    while let Some(so_far) = text.strip_suffix('\\') {
        match line("… ")? {
            Ok(next) => text = format!("{so_far}\n{next}"),
            Err(other) => return Ok(other),
        }
    }
    Ok(Entered::Line(text))
}

/// Does what the program is asked for.
fn obey(session: &mut Session, order: Order) -> Result<(), Failure> {
    match order {
        Order::Help => super::print(HELP)?,
        Order::Clear => session.conversation.clear(),
        Order::System(text) => session.conversation.system = text,
        Order::Set(name, value) => session.sampling.set(&name, &value)?,
        Order::Save(path) => session.conversation.save(&path)?,
        Order::Load(path) => {
            session.conversation = Conversation::load(&path)?;
            session.report.say(&format!("{} messages", session.conversation.len()));
        }
        Order::Undo if session.conversation.undo() => {}
        Order::Undo | Order::Retry => return Err("nothing was said yet".into()),
        Order::Show => show(session)?,
        // Seen to by the caller.
        Order::Quit => {}
    }
    Ok(())
}

fn show(session: &Session) -> Result<(), Failure> {
    let system = session.conversation.system.as_deref().unwrap_or("(none)");
    super::print(&format!("system: {system}"))?;
    for (name, value) in session.sampling.given() {
        super::print(&format!("{name}: {value}"))?;
    }
    let tokens = match session.conversation.len() {
        0 => 0,
        _ => session.prompt(&session.conversation)?.1,
    };
    let messages = session.conversation.len();
    Ok(super::print(&format!("{messages} messages, {tokens} of {} tokens", session.llm.context()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(lines: &[&str]) -> Entered {
        let mut lines = lines.iter();
        let mut read = |_: &str| match lines.next() {
            Some(&"^C") => Err(ReadlineError::Interrupted),
            Some(line) => Ok(line.to_string()),
            None => Err(ReadlineError::Eof),
        };
        enter(&mut read).unwrap()
    }

    #[test]
    fn a_message_may_have_several_lines() {
        let line = |text: &str| Entered::Line(text.into());
        let block = |text: &str| Entered::Block(text.into());
        assert_eq!(entered(&["one"]), line("one"));
        assert_eq!(entered(&["one\\", "two\\", "three"]), line("one\ntwo\nthree"));
        assert_eq!(entered(&["\"\"\"", "/one", "", "two", "\"\"\""]), block("/one\n\ntwo"));
        assert_eq!(entered(&["\"\"\"one\"\"\""]), block("one"));
        assert_eq!(entered(&["\"\"\"one", "two\"\"\"  "]), block("one\ntwo"));
        assert_eq!(entered(&["one\\", "^C"]), Entered::Interrupted);
        assert_eq!(entered(&["\"\"\"", "one"]), Entered::End);
        assert_eq!(entered(&[]), Entered::End);
    }
}
