//! How programs log: to standard error, as text or as JSON lines, filtered by level.
//!
//! Owns the set-up only; events are made by those who see them. Prompt text never belongs in an event.

use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The variable that holds a filter such as `info,sanctum_router=debug`.
pub const LEVEL_VARIABLE: &str = "SANCTUM_LOG";

/// Shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// A word that names no [`Format`].
#[derive(Debug, thiserror::Error)]
#[error("unknown log format `{0}`: use `text` or `json`")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter text is wrong.
    #[error("cannot read the log filter `{text}`")]
    Filter {
        /// What was given.
        text: String,
        /// Why it is refused.
        source: tracing_subscriber::filter::ParseError,
    },
    /// A log is installed already.
    #[error("the log is set up already")]
    Installed(#[source] tracing_subscriber::util::TryInitError),
}

/// Installs the log of this process. `filter` is the text of [`LEVEL_VARIABLE`], if set; the default is `info`.
pub fn init(format: Format, filter: Option<&str>) -> Result<(), LogError> {
    let text = filter.unwrap_or("info");
    let filter = EnvFilter::try_new(text)
        .map_err(|source| LogError::Filter { text: text.to_owned(), source })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let installed = match format {
        Format::Text => lines.with_ansi(false).finish().try_init(),
        Format::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    installed.map_err(LogError::Installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_two_names() {
        assert_eq!("text".parse::<Format>().expect("text"), Format::Text);
        assert_eq!("json".parse::<Format>().expect("json"), Format::Json);
        let refused = "yaml".parse::<Format>().expect_err("not a format");
        assert_eq!(refused.to_string(), "unknown log format `yaml`: use `text` or `json`");
    }

    #[test]
    fn a_wrong_filter_is_named() {
        let refused = init(Format::Text, Some("sanctum=loud")).expect_err("not a level");
        assert_eq!(refused.to_string(), "cannot read the log filter `sanctum=loud`");
    }
}
