//! `sanctum chat`: a seat, a message, an answer as it comes.
//!
//! Owns the conversation that it keeps and what it prints. Answers go to standard output and everything else to
//! standard error, so that a one-line chat can be piped.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use http::Method;
use http_body_util::BodyExt as _;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::ctrl_c;

use super::answer::{Answer, Piece};
use super::call::{CallError, Caller};
use super::{CliError, find, with_causes};

/// Arguments of `sanctum chat`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The seat, or one of its personas.
    seat: String,
    /// The message; several words need no quotes.
    message: Vec<String>,
    /// The router, such as http://127.0.0.1:8900; found through the instance file if left out.
    #[arg(long, value_name = "URL", env = "SANCTUM_URL")]
    url: Option<String>,
    /// The instance file whose router is meant.
    #[arg(long, value_name = "FILE", default_value = "instance.yaml", env = "SANCTUM_INSTANCE")]
    instance: PathBuf,
    /// A key, where the router asks for one.
    #[arg(long, value_name = "KEY", env = "SANCTUM_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Instructions put before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// 0 always takes the likeliest token.
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// The same seed gives the same answer.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

#[derive(Serialize)]
struct ChatRequest<'a> {
    model: &'a str,
    messages: &'a [Message],
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
}

/// How an answer went.
enum Turn {
    Answered(String),
    /// Stopped by Ctrl-C; what had come.
    Stopped(String),
    Failed(String),
}

struct Chat {
    options: Options,
    caller: Caller,
    url: String,
    messages: Vec<Message>,
}

pub(super) async fn run(options: Options) -> Result<(), CliError> {
    let url = find::caller_url(options.url.as_deref(), &options.instance)?;
    let caller = Caller::new(options.api_key.as_deref())?;
    let url = format!("{url}/v1/chat/completions");
    let words = options.message.join(" ");
    let mut chat = Chat { options, caller, url, messages: Vec::new() };
    chat.reset();
    match words.as_str() {
        "" => chat.converse().await,
        "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            chat.once(text).await
        }
        _ => chat.once(words).await,
    }
}

impl Chat {
    /// Forgets the conversation, but not its instructions.
    fn reset(&mut self) {
        let system = self.options.system.iter();
        self.messages =
            system.map(|text| Message { role: "system", content: text.clone() }).collect();
    }

    async fn once(&mut self, message: String) -> Result<(), CliError> {
        match self.ask(message).await? {
            Turn::Answered(_) => Ok(()),
            Turn::Stopped(_) => Err(CliError::Told),
            Turn::Failed(why) => {
                complain(&why);
                Err(CliError::Told)
            }
        }
    }

    async fn converse(&mut self) -> Result<(), CliError> {
        let is_terminal = io::stdin().is_terminal();
        if is_terminal {
            hint(&format!("Talking to {}. /reset forgets, /exit ends.\n", self.options.seat));
        }
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut failed = false;
        loop {
            if is_terminal {
                hint("> ");
            }
            let line = tokio::select! {
                line = lines.next_line() => line?,
                _ = ctrl_c() => None,
            };
            match line.as_deref().map(str::trim) {
                None | Some("/exit" | "/quit") => break,
                Some("") => {}
                Some("/reset") => self.reset(),
                Some(message) => failed |= !self.turn(message.to_owned()).await?,
            }
        }
        if is_terminal {
            hint("\n");
        }
        // A person has seen the errors; a program that piped lines in wants to know.
        if failed && !is_terminal { Err(CliError::Told) } else { Ok(()) }
    }

    /// One question of a conversation; true if it was answered. An unanswered one is taken back.
    async fn turn(&mut self, message: String) -> Result<bool, CliError> {
        let turn = match self.ask(message).await {
            Err(CliError::Call(error)) => Turn::Failed(with_causes(&error)),
            other => other?,
        };
        match turn {
            Turn::Answered(content) | Turn::Stopped(content) => {
                self.messages.push(Message { role: "assistant", content });
                Ok(true)
            }
            Turn::Failed(why) => {
                self.messages.pop();
                complain(&why);
                Ok(false)
            }
        }
    }

    /// Sends the conversation with one more message, and prints the answer as it comes.
    async fn ask(&mut self, message: String) -> Result<Turn, CliError> {
        self.messages.push(Message { role: "user", content: message });
        let request = ChatRequest {
            model: &self.options.seat,
            messages: &self.messages,
            stream: true,
            max_tokens: self.options.max_tokens,
            temperature: self.options.temperature,
            seed: self.options.seed,
        };
        let body = serde_json::to_string(&request)
            .map_err(|source| CliError::Nonsense { url: self.url.clone(), source })?;
        let mut said = String::new();
        let turn = tokio::select! {
            turn = self.listen(body, &mut said) => turn?,
            // Dropping the request closes its connection, which stops the answer at its source.
            _ = ctrl_c() => None,
        };
        if !said.is_empty() && !said.ends_with('\n') {
            writeln!(io::stdout())?;
        }
        Ok(match turn {
            Some(Ok(())) => Turn::Answered(said),
            Some(Err(why)) => Turn::Failed(why),
            None => Turn::Stopped(said),
        })
    }

    /// `Some(Err)` if the answer broke off after it had begun.
    async fn listen(
        &self,
        body: String,
        said: &mut String,
    ) -> Result<Option<Result<(), String>>, CliError> {
        let response = self.caller.send(Method::POST, &self.url, Some(body)).await?;
        let mut body = response.into_body();
        let mut answer = Answer::new();
        let mut out = io::stdout();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|source| CallError::Broken {
                url: self.url.clone(),
                source: source.into(),
            })?;
            let Some(bytes) = frame.data_ref() else { continue };
            let pieces = match answer.take(bytes) {
                Ok(pieces) => pieces,
                Err(error) => return Ok(Some(Err(with_causes(&error)))),
            };
            for piece in pieces {
                match piece {
                    Piece::Text(text) => {
                        out.write_all(text.as_bytes())?;
                        out.flush()?;
                        said.push_str(&text);
                    }
                    Piece::End => return Ok(Some(Ok(()))),
                    Piece::Failed(why) => return Ok(Some(Err(why))),
                }
            }
        }
        let cut = "the stream was cut before its end";
        Ok(Some(answer.finish.map(|_| ()).ok_or_else(|| cut.to_owned())))
    }
}

/// Says something beside the answer; a closed standard error is nobody's loss.
fn hint(text: &str) {
    let mut err = io::stderr();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

fn complain(why: &str) {
    hint(&format!("error: {why}\n"));
}
