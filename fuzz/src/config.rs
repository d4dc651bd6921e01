//! Configuration: any text as a file, with any variables, gives a configuration or problems, each
//! with a message.
//!
//! An input is TOML, then lines `WEIR_NAME=VALUE` after a line that is `%%`.

use std::ffi::OsString;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map};
use figment::{Error, Metadata, Profile, Provider, Source};
use weir::cli::sources;
use weir::config::{Config, load};
use weir_engine::compact::Limits;

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (file, variables) = text.split_once("\n%%\n").unwrap_or((text, ""));
    let env: Vec<(OsString, OsString)> = variables
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    match load(sources::figment(None, None, env, []).merge(File(file))) {
        Ok((config, warnings)) => {
            check_config(&config);
            assert!(warnings.iter().all(|warning| !warning.to_string().is_empty()));
        }
        Err(problems) => {
            assert!(!problems.is_empty(), "a problem has a message");
            for problem in problems {
                assert!(!problem.message.is_empty());
                assert_eq!(problem.to_string().lines().count(), 1, "{problem}");
            }
        }
    }
}

/// Asserts that an accepted configuration is usable.
fn check_config(config: &Config) {
    let policy = &config.context.policy;
    assert!(policy.low_permille < policy.hard_permille && policy.hard_permille <= 1000);
    let limited = config.limits.iter().map(|limit| limit.model.as_str());
    for model in limited.chain(["gpt-4o", "openai/o3", ""]) {
        let entry = config.models.find(model).entry;
        let limits = Limits {
            window_tokens: entry.window_tokens,
            max_input_tokens: entry.max_input_tokens,
            max_output_tokens: entry.max_output_tokens,
            operator_tokens: config.configured_limit_tokens(model),
            header_tokens: None,
            asked_output_tokens: Some(u64::MAX),
            counting: policy.counting,
        };
        let most = limits.input_tokens();
        assert!(most >= 1 && most <= entry.window_tokens);
        assert!(limits.operator_tokens.is_none_or(|operator| most <= operator));
    }
}

/// TOML that counts as a file, so that its values must have their types.
struct File<'a>(&'a str);

impl Provider for File<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::from("file", Source::File("weir.toml".into()))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let parsed: Result<Dict, _> = Toml::from_str(self.0);
        parsed.map(|dict| Profile::Default.collect(dict)).map_err(|error| error.to_string().into())
    }
}
