//! Answers to the questions of `weir init`, and their forms as text. Asks nothing.

use super::Users;
use crate::config::names::is_local_host;
use crate::upstream::Base;
use weir_store::budget::NanoUsd;

const OPENAI: &str = "https://api.openai.com/v1";
const ANTHROPIC: &str = "https://api.anthropic.com/v1";
/// Address of Ollama, the most common server on a personal machine.
pub(super) const LOCAL: &str = "http://127.0.0.1:11434/v1";

/// Destination of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Provider {
    OpenAi,
    Anthropic,
    /// Server on this machine, by its base URL.
    Local(String),
    Other(String),
}

impl Provider {
    pub(super) fn url(&self) -> &str {
        match self {
            Self::OpenAi => OPENAI,
            Self::Anthropic => ANTHROPIC,
            Self::Local(url) | Self::Other(url) => url,
        }
    }

    /// Returns the usual variable with the provider's key.
    pub(super) fn variable(&self) -> &'static str {
        match self {
            Self::OpenAi => "OPENAI_API_KEY",
            Self::Anthropic => "ANTHROPIC_API_KEY",
            Self::Local(_) => "LOCAL_API_KEY",
            Self::Other(_) => "PROVIDER_API_KEY",
        }
    }

    /// Returns a command that runs an application through a weir with this provider.
    pub(super) fn usage(&self) -> String {
        match self {
            Self::Anthropic => "ANTHROPIC_BASE_URL=http://127.0.0.1:8400 claude".to_owned(),
            _ => "OPENAI_BASE_URL=http://127.0.0.1:8400/v1 python app.py".to_owned(),
        }
    }
}

/// All answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answers {
    pub provider: Provider,
    pub users: Users,
    pub budget: Option<NanoUsd>,
}

impl Answers {
    /// Returns the variable from which weir reads the provider's key; `None` if callers send theirs.
    pub(super) fn variable(&self) -> Option<&'static str> {
        (self.users == Users::Team).then(|| self.provider.variable())
    }
}

/// Parses a provider: its name, or its base URL.
pub(super) fn provider(text: &str) -> Result<Provider, String> {
    match text.to_lowercase().as_str() {
        "openai" => return Ok(Provider::OpenAi),
        "anthropic" => return Ok(Provider::Anthropic),
        "local" => return Ok(Provider::Local(LOCAL.to_owned())),
        "" => return Err("write a base URL, such as https://host/v1".to_owned()),
        _ => {}
    }
    if !text.contains("://") {
        let known = "openai, anthropic, local, or a base URL such as https://host/v1";
        return Err(format!("write {known}"));
    }
    let base = Base::parse(text).map_err(|error| error.to_string())?;
    let is_local = is_local_host(base.host());
    Ok(if is_local { Provider::Local(text.to_owned()) } else { Provider::Other(text.to_owned()) })
}

/// Maximum spending a month; `None` for no budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct Spending(pub Option<NanoUsd>);

/// Parses dollars a month, or none.
pub(super) fn spending(text: &str) -> Result<Spending, String> {
    if text.eq_ignore_ascii_case("none") || text.eq_ignore_ascii_case("no") {
        return Ok(Spending(None));
    }
    let amount = NanoUsd::parse(text.trim_start_matches('$')).filter(|amount| amount.0 > 0);
    let wrong = || format!("write {}, such as 50, or none", NanoUsd::FORM);
    amount.map(|amount| Spending(Some(amount))).ok_or_else(wrong)
}
