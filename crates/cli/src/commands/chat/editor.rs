//! Interactive chat in a terminal.

use super::Session;
use super::conversation::Conversation;
use super::slash_command::{HELP, SlashCommand};
use crate::Failure;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::path::Path;
use std::process::ExitCode;

/// User input.
#[derive(Debug, PartialEq)]
enum UserInput {
    /// A message or a command.
    Line(String),
    /// A message between `"""`, which is never a command.
    Block(String),
    Interrupted,
    End,
}

/// Runs the conversation until the user leaves.
pub(super) fn converse(session: &mut Session, model: &str, history: &Path) -> Result<ExitCode, Failure> {
    let mut editor = DefaultEditor::new()?;
    // There is no history file the first time.
    let _ = editor.load_history(history);
    session.report.info(&format!("{model}; /help lists the commands, Ctrl-D leaves"));
    let mut pressed = false;
    loop {
        let input = read_input(&mut |prompt| editor.readline(prompt))?;
        let again = std::mem::replace(&mut pressed, input == UserInput::Interrupted);
        let before = session.conversation.clone();
        let text = match input {
            UserInput::End => break,
            UserInput::Interrupted if again => break,
            UserInput::Interrupted => {
                session.report.info("Ctrl-C again, or Ctrl-D, leaves");
                continue;
            }
            UserInput::Line(text) | UserInput::Block(text) if text.trim().is_empty() => continue,
            UserInput::Line(text) => {
                add_history(&mut editor, &text, history, session);
                match SlashCommand::parse(&text) {
                    Some(Ok(SlashCommand::Quit)) => break,
                    Some(Ok(SlashCommand::Retry)) if session.conversation.reopen() => None,
                    Some(command) => {
                        // A failed command does not end the chat.
                        if let Err(e) = command.map_err(Failure::from).and_then(|command| run_command(session, command))
                        {
                            session.report.error(&e.to_string());
                        }
                        continue;
                    }
                    None => Some(text),
                }
            }
            UserInput::Block(text) => {
                add_history(&mut editor, &text, history, session);
                Some(text)
            }
        };
        if let Some(text) = &text {
            session.conversation.add_user(text);
        }
        session.interrupt.take();
        let answered =
            session.answer((&mut std::io::stdout(), super::shown_thoughts())).and_then(|answer| session.close(&answer));
        match answered {
            Err(e) if crate::is_broken_pipe(&*e) => return Err(e),
            // A message that failed is removed again.
            Err(e) => {
                session.conversation = before;
                session.report.error(&e.to_string());
            }
            Ok(()) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds a line to the history, in memory and on disk.
fn add_history(editor: &mut DefaultEditor, text: &str, history: &Path, session: &Session) {
    let saved = editor.add_history_entry(text).and_then(|is_new| match is_new {
        true => {
            if let Some(dir) = history.parent() {
                std::fs::create_dir_all(dir)?;
            }
            editor.append_history(history)
        }
        false => Ok(()),
    });
    if let Err(e) = saved {
        session.report.warn(&format!("{}: {e}", history.display()));
    }
}

/// Reads a message, which may have several lines.
fn read_input(read: &mut dyn FnMut(&str) -> rustyline::Result<String>) -> Result<UserInput, Failure> {
    let mut line = |prompt: &str| match read(prompt) {
        Ok(line) => Ok(Ok(line)),
        Err(ReadlineError::Interrupted) => Ok(Err(UserInput::Interrupted)),
        Err(ReadlineError::Eof) => Ok(Err(UserInput::End)),
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
                return Ok(UserInput::Block(whole.trim_matches('\n').to_string()));
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
    Ok(UserInput::Line(text))
}

/// Runs a command.
fn run_command(session: &mut Session, command: SlashCommand) -> Result<(), Failure> {
    match command {
        SlashCommand::Help => super::print(HELP)?,
        SlashCommand::Clear => session.conversation.clear(),
        SlashCommand::System(text) => session.conversation.system = text,
        SlashCommand::Set(name, value) => session.sampling.set(&name, &value)?,
        SlashCommand::Save(path) => session.conversation.save(&path)?,
        SlashCommand::Load(path) => {
            session.conversation = Conversation::load(&path)?;
            session.report.info(&format!("{} messages", session.conversation.len()));
        }
        SlashCommand::Undo if session.conversation.undo() => {}
        SlashCommand::Undo | SlashCommand::Retry => return Err("there is no message yet".into()),
        SlashCommand::Show => show(session)?,
        // The caller handles it.
        SlashCommand::Quit => {}
    }
    Ok(())
}

fn show(session: &Session) -> Result<(), Failure> {
    let system = session.conversation.system.as_deref().unwrap_or("(none)");
    super::print(&format!("system: {system}"))?;
    for (name, value) in session.sampling.explicit() {
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

    fn input(lines: &[&str]) -> UserInput {
        let mut lines = lines.iter();
        let mut read = |_: &str| match lines.next() {
            Some(&"^C") => Err(ReadlineError::Interrupted),
            Some(line) => Ok(line.to_string()),
            None => Err(ReadlineError::Eof),
        };
        read_input(&mut read).unwrap()
    }

    #[test]
    fn multiline_input_joins_continuations_and_blocks() {
        let line = |text: &str| UserInput::Line(text.into());
        let block = |text: &str| UserInput::Block(text.into());
        assert_eq!(input(&["one"]), line("one"));
        assert_eq!(input(&["one\\", "two\\", "three"]), line("one\ntwo\nthree"));
        assert_eq!(input(&["\"\"\"", "/one", "", "two", "\"\"\""]), block("/one\n\ntwo"));
        assert_eq!(input(&["\"\"\"one\"\"\""]), block("one"));
        assert_eq!(input(&["\"\"\"one", "two\"\"\"  "]), block("one\ntwo"));
        assert_eq!(input(&["one\\", "^C"]), UserInput::Interrupted);
        assert_eq!(input(&["\"\"\"", "one"]), UserInput::End);
        assert_eq!(input(&[]), UserInput::End);
    }
}
