//! Slash commands of a chat.

use std::path::PathBuf;

/// A slash command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SlashCommand {
    Help,
    Clear,
    /// `None` removes the system prompt.
    System(Option<String>),
    Set(String, String),
    Show,
    Save(PathBuf),
    Load(PathBuf),
    Retry,
    Undo,
    Quit,
}

pub(super) const HELP: &str = "\
/clear            start over; the system prompt stays
/system [TEXT]    set the system prompt; without TEXT, remove it
/set NAME VALUE   max_tokens, temperature, top_k, top_p, seed, stop, constrain, …; `default` resets it
/show             show what is set, and how full the context is
/save FILE        save the conversation
/load FILE        load a saved conversation
/retry            answer the last message again
/undo             remove the last message and its answer
/quit             leave; so does Ctrl-D

Ctrl-C ends an answer. A line that ends with \\ continues on the next; lines between \"\"\" and \"\"\" are one message,
which may begin with a slash.";

impl SlashCommand {
    /// Parses a line that begins with a slash.
    pub(super) fn parse(line: &str) -> Option<Result<SlashCommand, String>> {
        let line = line.trim().strip_prefix('/')?;
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        Some(SlashCommand::named(name, rest.trim()))
    }

    fn named(name: &str, rest: &str) -> Result<SlashCommand, String> {
        let file = || match rest {
            "" => Err(format!("/{name} takes a file")),
            path => Ok(PathBuf::from(path)),
        };
        let command = match name {
            "save" => return file().map(SlashCommand::Save),
            "load" => return file().map(SlashCommand::Load),
            "system" => return Ok(SlashCommand::System((!rest.is_empty()).then(|| rest.to_string()))),
            "set" => {
                let (name, value) = rest.split_once(char::is_whitespace).ok_or("/set takes a name and a value")?;
                return Ok(SlashCommand::Set(name.to_string(), value.trim().to_string()));
            }
            "help" | "?" => SlashCommand::Help,
            "clear" => SlashCommand::Clear,
            "show" => SlashCommand::Show,
            "retry" => SlashCommand::Retry,
            "undo" => SlashCommand::Undo,
            "quit" | "exit" | "bye" => SlashCommand::Quit,
            _ => return Err(format!("unknown command /{name}; /help lists the commands")),
        };
        if rest.is_empty() { Ok(command) } else { Err(format!("/{name} takes no argument")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_commands_parse_and_appear_in_help() {
        let parse = |line: &str| SlashCommand::parse(line).unwrap();
        assert_eq!(parse("/set  stop  a b "), Ok(SlashCommand::Set("stop".into(), "a b".into())));
        assert_eq!(parse("/system Be brief."), Ok(SlashCommand::System(Some("Be brief.".into()))));
        assert_eq!(parse("/system"), Ok(SlashCommand::System(None)));
        assert_eq!(parse(" /save a b.json"), Ok(SlashCommand::Save("a b.json".into())));
        for name in ["help", "clear", "show", "retry", "undo", "quit"] {
            assert!(parse(&format!("/{name}")).is_ok() && parse(&format!("/{name} x")).is_err(), "{name}");
        }
        for name in ["clear", "system", "set", "show", "save", "load", "retry", "undo", "quit"] {
            assert!(HELP.contains(&format!("/{name}")), "{name}");
        }
        for line in ["/nothing", "/save", "/load", "/set temperature", "/"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert_eq!(SlashCommand::parse("no slash"), None);
    }
}
