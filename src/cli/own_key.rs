//! weir's own key for the provider, read from the variable or the file that the configuration names.
//! What is wrong is told without a character of it.

use std::ffi::OsString;

use crate::config::{Secret, Upstream};

/// The key that `upstream` tells of, if it tells of one. The problem names the configuration's key.
pub fn read(
    upstream: &Upstream,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Option<Secret>, String> {
    let (told, text) = if !upstream.api_key_env.is_empty() {
        let name = &upstream.api_key_env;
        let told = format!("upstream.api_key_env: the variable {name}");
        let value = env.into_iter().find(|(found, _)| found == name.as_str());
        let Some((_, value)) = value else {
            return Err(format!("{told} is not set in weir's environment"));
        };
        (told, value.into_string().map_err(|_| "is no text".to_owned()))
    } else if !upstream.api_key_file.is_empty() {
        let told = format!("upstream.api_key_file: {}", upstream.api_key_file);
        let read = std::fs::read_to_string(&upstream.api_key_file);
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
    use crate::config::Config;

    #[test]
    fn a_key_is_read_whole_or_its_place_is_named() {
        let read_env = |value: Option<&str>| {
            let upstream =
                Upstream { api_key_env: "OWN_KEY".to_owned(), ..Config::default().upstream };
            let env = value.map(|value| ("OWN_KEY".into(), value.into()));
            read(&upstream, env).map(|key| key.map(|key| key.expose().to_owned()))
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
        assert_eq!(read(&Config::default().upstream, []), Ok(None));
    }
}
