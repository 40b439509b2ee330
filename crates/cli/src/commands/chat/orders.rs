//! What begins with a slash.

use std::path::PathBuf;

/// What a person can ask of the program rather than of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Help,
    Clear,
    /// None takes away what there is.
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
/clear            begin anew; /system stays
/system [TEXT]    say how the model should behave; without a text, leave that to the model
/set NAME VALUE   max_tokens, temperature, top_k, top_p, seed, stop, constrain, …; `default` takes it back
/show             what is set, and how full the context is
/save FILE        keep the conversation
/load FILE        go on with one that was kept
/retry            answer the last message again
/undo             take the last message and its answer back
/quit             leave; so does Ctrl-D

Ctrl-C ends an answer. A line that ends with \\ goes on in the next; lines between \"\"\" and \"\"\" are one message,
also one that begins with a slash.";

impl Order {
    /// What a line asks for, if it begins with a slash.
    pub(super) fn parse(line: &str) -> Option<Result<Order, String>> {
        let line = line.trim().strip_prefix('/')?;
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        Some(Order::named(name, rest.trim()))
    }

    fn named(name: &str, rest: &str) -> Result<Order, String> {
        let file = || match rest {
            "" => Err(format!("/{name} takes a file")),
            path => Ok(PathBuf::from(path)),
        };
        let order = match name {
            "save" => return file().map(Order::Save),
            "load" => return file().map(Order::Load),
            "system" => return Ok(Order::System((!rest.is_empty()).then(|| rest.to_string()))),
            "set" => {
                let (name, value) = rest.split_once(char::is_whitespace).ok_or("/set takes a name and a value")?;
                return Ok(Order::Set(name.to_string(), value.trim().to_string()));
            }
            "help" | "?" => Order::Help,
            "clear" => Order::Clear,
            "show" => Order::Show,
            "retry" => Order::Retry,
            "undo" => Order::Undo,
            "quit" | "exit" | "bye" => Order::Quit,
            _ => return Err(format!("there is no /{name}; /help lists what there is")),
        };
        if rest.is_empty() { Ok(order) } else { Err(format!("/{name} takes nothing behind it")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_read_and_told_and_others_are_refused() {
        let parse = |line: &str| Order::parse(line).unwrap();
        assert_eq!(parse("/set  stop  a b "), Ok(Order::Set("stop".into(), "a b".into())));
        assert_eq!(parse("/system Be brief."), Ok(Order::System(Some("Be brief.".into()))));
        assert_eq!(parse("/system"), Ok(Order::System(None)));
        assert_eq!(parse(" /save a b.json"), Ok(Order::Save("a b.json".into())));
        for name in ["help", "clear", "show", "retry", "undo", "quit"] {
            assert!(parse(&format!("/{name}")).is_ok() && parse(&format!("/{name} x")).is_err(), "{name}");
        }
        for name in ["clear", "system", "set", "show", "save", "load", "retry", "undo", "quit"] {
            assert!(HELP.contains(&format!("/{name}")), "{name}");
        }
        for line in ["/nothing", "/save", "/load", "/set temperature", "/"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert_eq!(Order::parse("no slash"), None);
    }
}
