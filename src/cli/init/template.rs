//! Text of the configuration that `weir init` writes. Writes no file.

use std::path::Path;

use toml_edit::Value;

use super::Users;
use super::answers::Answers;

/// Returns the configuration for `answers`, to be kept at `path`.
pub(super) fn text(answers: &Answers, store: Option<&str>, path: &Path) -> String {
    let shown = match path.as_os_str() == "-" {
        true => "weir.toml".to_owned(),
        false => path.display().to_string(),
    };
    let sections = [
        head(&shown),
        upstream(answers),
        auth(answers),
        LISTENERS.to_owned(),
        CONTEXT.to_owned(),
        store.map(own_store).unwrap_or_default(),
        budgets(answers, &shown),
    ];
    sections.concat()
}

fn head(shown: &str) -> String {
    format!(
        "\
# weir's configuration. `weir check --config {shown}` checks it; weir applies a change as soon as
# the file is saved. Keys that are missing here have their defaults; the reference lists them all.
"
    )
}

fn upstream(answers: &Answers) -> String {
    let url = Value::from(answers.provider.url());
    let key = match answers.variable() {
        Some(variable) => format!(
            "\
# The environment variable with the provider's key. The key itself never stands in this file.
api_key = \"env:{variable}\"
"
        ),
        None => format!(
            "\
# The environment variable with a provider key for all callers, instead of the keys that they send:
# api_key = \"env:{}\"
",
            answers.provider.variable()
        ),
    };
    format!(
        "
[upstream]
# Where requests go: the base URL that you would give an SDK.
url = {url}
{key}# Retries after failures that may pass. OpenAI's SDKs retry by themselves; keep 0 for them.
# retries.max = 2
"
    )
}

fn auth(answers: &Answers) -> String {
    let (mode, about) = match answers.users {
        Users::Me => (
            "open",
            "# \"open\": each caller sends its own provider key, which weir forwards. With \"keys\" weir has\n\
             # the provider's key, and callers use keys that `weir keys create` makes.",
        ),
        Users::Team => (
            "keys",
            "# \"keys\": callers use keys that `weir keys create` makes; each has limits, and can be revoked.\n\
             # With \"open\" each caller sends its own provider key.",
        ),
    };
    format!("\n[auth]\n{about}\nmode = \"{mode}\"\n")
}

const LISTENERS: &str = "
[server]
# Address and port. 0.0.0.0:8400 serves other machines; then list the host names that they use.
listen = \"127.0.0.1:8400\"
# allowed_hosts = [\"weir.example.com\"]

[admin]
# Address of the dashboard, the admin API and `weir top`, for holders of the token in `admin.token`,
# next to the store.
listen = \"127.0.0.1:8410\"
";

const CONTEXT: &str = "
[context]
# \"compact\" keeps conversations inside the limit; \"observe\" changes nothing and only reports.
mode = \"compact\"

# When conversations are compacted: \"window\" where the model's window ends, \"step\" below the size
# from which its input costs more, \"economic\" where that is cheapest. `weir models show NAME` prints
# these sizes, and `weir savings --limit economic` what one would have saved, and lost.
limit = \"window\"

# A lower limit on prompts than the model's context window; * stands for any characters.
# [[limits]]
# model = \"*\"
# max_input_tokens = 64000

# A model that weir does not know.
# [models.\"my-model\"]
# window_tokens = 32768
";

fn own_store(file: &str) -> String {
    let key = if crate::config::is_database_url(file) { "url" } else { "path" };
    let value = Value::from(file);
    format!("\n[store]\n# Keys, budgets and usage.\n{key} = {value}\n")
}

fn budgets(answers: &Answers, shown: &str) -> String {
    let said = match answers.budget {
        Some(amount) => format!("`weir init` has set {amount} a month for all requests."),
        None => format!("`weir budgets set all --usd 50 --per month --config {shown}` sets one."),
    };
    format!(
        "
# Budgets are kept in the store, not here. {said}
# `weir budgets list --config {shown}` lists them.

[prices]
# Cost of requests whose model has no known price: \"zero\", or \"reject\" to refuse them, so that
# nothing passes a budget uncounted.
unknown = \"zero\"
"
    )
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::super::answers::Provider;
    use super::*;
    use crate::config::{self, AuthMode, DEFAULT_TOML};
    use weir_store::budget::NanoUsd;

    /// Returns the configuration without the marks before keys that are comments.
    fn with_all_keys(text: &str) -> String {
        let key = |line: &str| {
            let bare = line.strip_prefix("# ")?;
            let name: String = bare
                .chars()
                .take_while(|own| own.is_ascii_lowercase() || matches!(own, '_' | '.'))
                .collect();
            let is_key = !name.is_empty() && bare[name.len()..].starts_with(" = ");
            (is_key || bare.starts_with('[')).then(|| bare.to_owned())
        };
        text.lines().map(|line| key(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
    }

    fn load(text: &str) -> config::Config {
        let figment = Figment::from(Toml::string(DEFAULT_TOML)).merge(Toml::string(text));
        config::load(figment).unwrap_or_else(|problems| panic!("{problems:?} in:\n{text}")).0
    }

    #[test]
    fn every_answer_gives_a_valid_configuration_whose_comments_are_keys() {
        let local = Provider::Local("http://127.0.0.1:11434/v1".to_owned());
        let other = Provider::Other("https://x/v1?a=\"b".replace('"', "%22"));
        for provider in [Provider::OpenAi, Provider::Anthropic, local, other] {
            for users in [Users::Me, Users::Team] {
                for budget in [None, Some(NanoUsd(50_000_000_000))] {
                    let answers = Answers { provider: provider.clone(), users, budget };
                    let text = text(&answers, Some("a \"b\".db"), Path::new("weir.toml"));
                    let config = load(&text);
                    assert_eq!(config.upstream.url, provider.url());
                    assert_eq!(config.auth.mode == AuthMode::Keys, users == Users::Team);
                    assert_eq!(config.store.path, "a \"b\".db");
                    let all = load(&with_all_keys(&text));
                    assert_eq!(all.limits.len(), 1, "{}", with_all_keys(&text));
                    assert_eq!(all.upstream.max_retries, 2);
                }
            }
        }
    }

    #[test]
    fn lines_are_short() {
        let provider = Provider::OpenAi;
        let answers =
            Answers { provider, users: Users::Team, budget: Some(NanoUsd(50_000_000_000)) };
        let text = text(&answers, None, Path::new("weir.toml"));
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
