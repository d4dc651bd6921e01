//! weir's own keys for providers, read from the variables or the files that the configuration names.
//! What is wrong is told without a character of them.

use std::ffi::OsString;

use crate::config::{Config, Secret};

/// Puts the keys that `config` tells of into it.
pub fn read_all(
    config: &mut Config,
    env: impl Fn() -> Vec<(OsString, OsString)>,
) -> Result<(), Vec<String>> {
    let (upstream, summaries) = (&config.upstream, &config.summaries);
    let own = read("upstream", &upstream.api_key_env, &upstream.api_key_file, env());
    let summarisers = read("summaries", &summaries.api_key_env, &summaries.api_key_file, env());
    match (own, summarisers) {
        (Ok(own), Ok(summarisers)) => {
            config.upstream.own_key = own;
            config.summaries.own_key = summarisers;
            Ok(())
        }
        (own, summarisers) => Err([own.err(), summarisers.err()].into_iter().flatten().collect()),
    }
}

/// The key that a section tells of, if it tells of one. The problem names the configuration's key.
fn read(
    section: &str,
    api_key_env: &str,
    api_key_file: &str,
    env: Vec<(OsString, OsString)>,
) -> Result<Option<Secret>, String> {
    let (told, text) = if !api_key_env.is_empty() {
        let name = api_key_env;
        let told = format!("{section}.api_key_env: the variable {name}");
        let value = env.into_iter().find(|(found, _)| found == name);
        let Some((_, value)) = value else {
            return Err(format!("{told} is not set in weir's environment"));
        };
        (told, value.into_string().map_err(|_| "is no text".to_owned()))
    } else if !api_key_file.is_empty() {
        let told = format!("{section}.api_key_file: {api_key_file}");
        let read = std::fs::read_to_string(api_key_file);
        (told, read.map_err(|error| format!("cannot be read: {error}")))
    } else {
        return Ok(None);
    };
    let text = text.map_err(|problem| format!("{told} {problem}"))?;
    let key = text.trim();
    if key.is_empty() {
        return Err(format!("{told} is empty"));
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{told} holds characters that no key has, such as spaces inside"));
    }
    Ok(Some(Secret::new(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_whole_or_its_place_is_named() {
        let read_env = |value: Option<&str>| {
            let env = value.map(|value| ("OWN_KEY".into(), value.into())).into_iter().collect();
            read("upstream", "OWN_KEY", "", env).map(|key| key.map(|key| key.expose().to_owned()))
        };
        assert_eq!(read_env(Some(" sk-own\n")), Ok(Some("sk-own".to_owned())));
        for (value, said) in [
            (None, "is not set"),
            (Some(" "), "is empty"),
            (Some("sk own"), "characters"),
            (Some("sk-\u{e9}"), "characters"),
        ] {
            let problem = read_env(value).expect_err("no key");
            assert!(
                problem.contains("upstream.api_key_env") && problem.contains(said),
                "{problem}"
            );
            assert!(!problem.contains("sk"), "{problem}");
        }
        assert_eq!(read("upstream", "", "", Vec::new()), Ok(None));
    }
}
