//! `sconce chat`: a conversation with a language model.

mod conversation;
mod editor;
mod orders;
mod room;

use super::{print, ran_line, with_ran};
use crate::Failure;
use crate::args::LanguageModel;
use crate::report::Report;
use crate::sampling::Sampling;
use crate::told::{Ending, Interrupt, Told, finish_reason, tell};
use clap::Args;
use conversation::Conversation;
use room::Room;
use sconce_engine::{Error, Finish, Llm, Start, TemplateError};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

/// Talk with a language model.
///
/// With a message, or one on standard input, the answer is printed as it comes. Without, a conversation begins: Ctrl-C ends an
/// answer, Ctrl-D the conversation, and /help tells the rest.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce chat -m smollm\n  \
    sconce chat -m smollm \"Name three colours.\" --system \"You answer in one line.\"\n  \
    git diff | sconce chat -m Qwen/Qwen3-0.6B --system \"Write a commit message for this diff.\" --temperature 0")]
pub(crate) struct Chat {
    /// What you have to say; without it, standard input is the message, or a terminal begins a conversation.
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
    /// How the model should behave.
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    model: LanguageModel,
    #[command(flatten)]
    sampling: Sampling,
    /// Print the answer as JSON, when it is whole.
    #[arg(long)]
    json: bool,
}

/// A conversation and all that it needs.
struct Session<'a> {
    llm: &'a Llm,
    report: &'a Report,
    interrupt: Interrupt,
    conversation: Conversation,
    sampling: Sampling,
}

impl Chat {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.sampling.check()?;
        let message = match self.message {
            Some(message) => Some(message),
            None if std::io::stdin().is_terminal() => None,
            None => Some(whole_stdin()?),
        };
        if message.is_none() && self.json {
            return Err("--json is for one answer: give a message, or one on standard input".into());
        }
        let llm = &self.model.load(report, 1)?;
        let conversation = Conversation::new(self.system);
        let interrupt = Interrupt::install()?;
        let mut session = Session { llm, report, interrupt, conversation, sampling: self.sampling };
        let Some(message) = message else {
            // Better now than behind the first message.
            if let Err(e @ Error::Template(TemplateError::Absent)) = session.prompt(&Conversation::probe()) {
                return Err(e.into());
            }
            let history = self.model.how.language_options()?.hub.cache.join("chat-history");
            return editor::converse(&mut session, &self.model.model, &history);
        };
        session.conversation.ask(&message);
        if self.json {
            session.as_json()?;
            return Ok(ExitCode::SUCCESS);
        }
        let told = session.answer(&mut std::io::stdout())?;
        session.close(&told)?;
        report.say(&ran_line(llm));
        Ok(ExitCode::SUCCESS)
    }
}

impl Session<'_> {
    /// What a conversation is to the model, and how many tokens.
    fn prompt(&self, conversation: &Conversation) -> sconce_engine::Result<(Start, usize)> {
        let start = Start::Rendered(self.llm.render(&conversation.messages(), &Default::default())?);
        let tokens = self.llm.encode(&start)?.len();
        Ok((start, tokens))
    }

    /// Answers what was asked last and writes it as it comes.
    fn answer(&mut self, to: &mut dyn Write) -> Result<Told, Failure> {
        let (start, tokens) = self.prompt(&self.conversation)?;
        let room = Room::new(self.llm.context(), tokens)?;
        let mut request = self.sampling.request(self.llm.params());
        request.max_tokens = Some(room.most(request.max_tokens));
        request.start = start;
        let told = tell(self.llm.stream(&request)?, &self.interrupt, to)?;
        self.conversation.answered(&told.text);
        Ok(told)
    }

    /// The end of the last line, and how fast it was.
    fn close(&self, told: &Told) -> Result<(), Failure> {
        if !told.text.ends_with('\n') {
            writeln!(std::io::stdout())?;
        }
        told.say_speed(self.report);
        let is_full = told.prompt_tokens + told.picks.len() >= self.llm.context();
        if told.ending == Ending::Finished(Finish::Length) && is_full {
            self.report.warn(&room::full(self.llm.context()));
        }
        Ok(())
    }

    fn as_json(&mut self) -> Result<(), Failure> {
        if self.sampling.seed.is_none() {
            // So that it can be told.
            let seed = self.sampling.request(self.llm.params()).params.map(|p| p.seed);
            self.sampling.seed = seed;
        }
        let told = self.answer(&mut std::io::sink())?;
        let reason = match &told.ending {
            Ending::Finished(finish) => finish_reason(finish),
            Ending::Interrupted => "interrupted",
        };
        let stopped_by = match &told.ending {
            Ending::Finished(Finish::Stop(text)) => Some(text),
            _ => None,
        };
        let (read, wrote) = (told.prompt_tokens, told.picks.len());
        let about = json!({
            "message": {"role": "assistant", "content": told.text},
            "tokens": told.picks.iter().map(|p| p.id).collect::<Vec<_>>(),
            "finish_reason": reason,
            "stop": stopped_by,
            "seed": self.sampling.seed,
            "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
            "first_seconds": told.first.map(|(t, _)| t.as_secs_f64()),
            "seconds": told.took.as_secs_f64(),
        });
        Ok(print(&with_ran(about, self.llm).to_string())?)
    }
}

/// All of standard input, without the end of its last line.
fn whole_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("stdin: {e}"))?;
    match text.trim_end() {
        "" => Err("standard input holds no message".into()),
        message => Ok(message.to_string()),
    }
}
