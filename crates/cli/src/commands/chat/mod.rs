//! `sconce chat`: a conversation with a language model.

mod answer_printer;
mod context_budget;
mod conversation;
mod editor;
mod slash_command;

use super::{print, run_line, with_run_info};
use crate::Failure;
use crate::args::LanguageModel;
use crate::report::Report;
use crate::sampling::Sampling;
use crate::stream_printer::{Ending, Interrupt, PrintedAnswer, finish_reason, follow_stream};
use answer_printer::{AnswerPrinter, ThoughtStyle};
use clap::Args;
use context_budget::ContextBudget;
use conversation::Conversation;
use sconce_engine::{Error, Finish, Llm, Start, TemplateError, Thoughts};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

/// Chat with a language model.
///
/// With MESSAGE, or a message on standard input, the answer is printed while it is generated.
/// Without, an interactive chat begins: Ctrl-C ends an answer, Ctrl-D the chat, and /help lists the
/// commands.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce chat -m smollm\n  \
    sconce chat -m smollm \"Name three colours.\" --system \"You answer in one line.\"\n  \
    git diff | sconce chat -m Qwen/Qwen3-0.6B --system \"Write a commit message for this diff.\" --temperature 0")]
pub(crate) struct Chat {
    /// The message. Without it, standard input is the message, or on a terminal an interactive chat
    /// begins.
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
    /// System prompt.
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    model: LanguageModel,
    #[command(flatten)]
    sampling: Sampling,
    /// Print the answer as JSON when it is complete.
    #[arg(long)]
    json: bool,
}

/// State of a chat.
struct Session<'a> {
    llm: &'a Llm,
    report: &'a Report,
    interrupt: Interrupt,
    conversation: Conversation,
    sampling: Sampling,
}

/// An answer, and the thought before it.
struct ChatAnswer {
    thought: String,
    printed: PrintedAnswer,
}

impl Chat {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.sampling.check()?;
        let message = match self.message {
            Some(message) => Some(message),
            None if std::io::stdin().is_terminal() => None,
            None => Some(read_stdin()?),
        };
        if message.is_none() && self.json {
            return Err("--json needs a message: give MESSAGE, or a message on standard input".into());
        }
        let llm = &self.model.load(report, 1)?;
        let conversation = Conversation::new(self.system);
        let interrupt = Interrupt::install()?;
        let mut session = Session { llm, report, interrupt, conversation, sampling: self.sampling };
        let Some(message) = message else {
            // Fail before the first message is typed.
            if let Err(e @ Error::Template(TemplateError::Absent)) = session.prompt(&Conversation::probe()) {
                return Err(e.into());
            }
            let history = self.model.run_args.options()?.hub.cache.join("chat-history");
            return editor::converse(&mut session, &self.model.model, &history);
        };
        session.conversation.add_user(&message);
        if self.json {
            session.as_json()?;
            return Ok(ExitCode::SUCCESS);
        }
        let answer = session.answer((&mut std::io::stdout(), shown_thoughts()))?;
        session.close(&answer)?;
        report.info(&run_line(llm));
        Ok(ExitCode::SUCCESS)
    }
}

impl Session<'_> {
    /// The prompt of a conversation, and its number of tokens.
    fn prompt(&self, conversation: &Conversation) -> sconce_engine::Result<(Start, usize)> {
        let start = Start::Rendered(self.llm.render(&conversation.messages(), &Default::default())?);
        let tokens = self.llm.encode(&start)?.len();
        Ok((start, tokens))
    }

    /// Generates and prints the answer to the last message.
    fn answer(&mut self, to: (&mut dyn Write, ThoughtStyle)) -> Result<ChatAnswer, Failure> {
        let (start, tokens) = self.prompt(&self.conversation)?;
        let budget = ContextBudget::new(self.llm.context(), tokens)?;
        let mut request = self.sampling.request(self.llm.params());
        request.max_tokens = Some(budget.max_answer_tokens(request.max_tokens));
        request.thoughts = self.llm.reasoning().map(|reasoning| Thoughts { syntax: reasoning.syntax, budget: None });
        let prompt = if let Start::Rendered(text) = &start { text.as_str() } else { "" };
        let mut printer = AnswerPrinter::new(self.llm, request.thoughts, prompt, to);
        request.start = start.clone();
        let stream = self.llm.stream(&request)?;
        let answer = follow_stream(stream, &self.interrupt, &mut |text, sampled| printer.push(self.llm, text, sampled));
        // Also when it failed: a terminal must not stay dimmed.
        let ended = printer.finish();
        let (answer, AnswerPrinter { thought, text, .. }) = (answer?, printer);
        ended?;
        self.conversation.add_assistant(&text, &thought);
        Ok(ChatAnswer { thought, printed: PrintedAnswer { text, ..answer } })
    }

    /// Ends the last line and reports the speed.
    fn close(&self, ChatAnswer { printed: answer, .. }: &ChatAnswer) -> Result<(), Failure> {
        if !answer.text.ends_with('\n') {
            writeln!(std::io::stdout())?;
        }
        answer.report_speed(self.report);
        let is_full = answer.prompt_tokens + answer.sampled.len() >= self.llm.context();
        if answer.ending == Ending::Finished(Finish::Length) && is_full {
            self.report.warn(&context_budget::full(self.llm.context()));
        }
        Ok(())
    }

    fn as_json(&mut self) -> Result<(), Failure> {
        if self.sampling.seed.is_none() {
            // Drawn here, so that the output can contain it.
            let seed = self.sampling.request(self.llm.params()).params.map(|p| p.seed);
            self.sampling.seed = seed;
        }
        let ChatAnswer { thought, printed: answer } = self.answer((&mut std::io::sink(), ThoughtStyle::Hidden))?;
        let reason = match &answer.ending {
            Ending::Finished(finish) => finish_reason(finish),
            Ending::Interrupted => "interrupted",
        };
        let stopped_by = match &answer.ending {
            Ending::Finished(Finish::Stop(text)) => Some(text),
            _ => None,
        };
        let (read, wrote) = (answer.prompt_tokens, answer.sampled.len());
        let mut message = json!({"role": "assistant", "content": answer.text});
        if !thought.is_empty() {
            message["reasoning_content"] = thought.into();
        }
        let about = json!({
            "message": message,
            "tokens": answer.sampled.iter().map(|p| p.id).collect::<Vec<_>>(),
            "finish_reason": reason,
            "stop": stopped_by,
            "seed": self.sampling.seed,
            "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
            "first_seconds": answer.first.map(|(t, _)| t.as_secs_f64()),
            "seconds": answer.took.as_secs_f64(),
        });
        Ok(print(&with_run_info(about, self.llm).to_string())?)
    }
}

/// How thoughts are printed to standard output.
fn shown_thoughts() -> ThoughtStyle {
    ThoughtStyle::of_terminal(std::io::stdout().is_terminal(), std::env::var_os("NO_COLOR").is_none())
}

/// All of standard input, without trailing whitespace.
fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("stdin: {e}"))?;
    match text.trim_end() {
        "" => Err("standard input is empty; a message was expected".into()),
        message => Ok(message.to_string()),
    }
}
