//! Reads weir's own keys for providers from the variables or files that the configuration names.
//! Errors contain no character of them.

use std::ffi::OsString;
use std::iter;

use super::config_files;
use crate::config::{Config, Secret, SecretPlace, events, traces};

/// Variable of OpenTelemetry with a collector's headers.
pub(super) const OTEL_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// Minimum length of the secret of several instances.
const MIN_SECRET_BYTES: usize = 32;

/// Loads the keys that `config` refers to, and returns what is wrong with them.
pub(super) fn read_all(
    config: &mut Config,
    env: impl Fn() -> Vec<(OsString, OsString)>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut noted = |read: Result<Option<Secret>, String>| {
        read.unwrap_or_else(|problem| {
            problems.push(problem);
            None
        })
    };
    let named = config.upstreams.iter_mut();
    let named = named.map(|(name, upstream)| (format!("upstreams.{name}"), upstream));
    for (section, upstream) in
        iter::once(("upstream".to_owned(), &mut config.upstream)).chain(named)
    {
        let own = read(&format!("{section}.api_key"), &upstream.api_key, env());
        upstream.provider_key = noted(own);
        for (header, variable) in &upstream.header_envs {
            let given = format!("{section}.headers: the variable {variable}");
            let value = noted(secret(&given, variable, env()).map(Some));
            upstream.secret_headers.extend(value.map(|value| (header.clone(), value)));
        }
    }
    let summaries = &mut config.summaries;
    summaries.provider_key = noted(read("summaries.upstream.api_key", &summaries.api_key, env()));
    noted(read_secret(config, &env).map(|()| None));
    let events = &mut config.events;
    events.secret = noted(read("events.secret", &events.secret_place, env()).and_then(signing));
    let traces = &mut config.traces;
    if !traces.endpoint.is_empty() {
        let of_variable = |name| env().into_iter().find(|(found, _)| found == name);
        if let Some((_, value)) = of_variable(OTEL_HEADERS) {
            match value.to_str().and_then(traces::headers) {
                Some(headers) => traces.headers = headers,
                None => problems
                    .push(format!("{OTEL_HEADERS} is not in the form name=value,name=value")),
            }
        }
        let name = of_variable("OTEL_SERVICE_NAME").and_then(|(_, name)| name.into_string().ok());
        if let Some(name) = name.filter(|name| !name.trim().is_empty()) {
            name.trim().clone_into(&mut traces.service_name);
        }
    }
    problems
}

/// Loads the secret of several instances, if `config` names one.
pub(super) fn read_secret(
    config: &mut Config,
    env: impl Fn() -> Vec<(OsString, OsString)>,
) -> Result<(), String> {
    let auth = &mut config.auth;
    let own = read("auth.secret", &auth.secret_place, env());
    auth.secret = own.and_then(long)?;
    Ok(())
}

/// Checks the length of the secret of several instances.
fn long(secret: Option<Secret>) -> Result<Option<Secret>, String> {
    let length = secret.as_ref().map_or(usize::MAX, |secret| secret.expose().len());
    match length < MIN_SECRET_BYTES {
        true => Err(format!(
            "auth.secret: the secret has {length} characters, fewer than {MIN_SECRET_BYTES}"
        )),
        false => Ok(secret),
    }
}

/// Checks that a secret can sign events.
fn signing(secret: Option<Secret>) -> Result<Option<Secret>, String> {
    let is_sound = |secret: &Secret| events::signing_key(secret.expose()).is_some();
    match secret.as_ref().is_none_or(is_sound) {
        true => Ok(secret),
        false => {
            Err("events.secret: the secret is not 24 to 64 bytes in base64; make one with: echo \
                      whsec_$(openssl rand -base64 32)"
                .to_owned())
        }
    }
}

/// Returns the text of a variable.
fn variable(given: &str, name: &str, env: Vec<(OsString, OsString)>) -> Result<String, String> {
    let (_, value) = env.into_iter().find(|(found, _)| found == name).ok_or_else(|| {
        format!(
            "{given} is not set in weir's environment. Set it before weir starts, such as with \
             `export {name}=…`"
        )
    })?;
    value.into_string().map_err(|_| format!("{given} is not valid UTF-8"))
}

/// Checks the value of a variable that is used in a header.
fn secret(given: &str, name: &str, env: Vec<(OsString, OsString)>) -> Result<Secret, String> {
    match variable(given, name, env)?.trim() {
        "" => Err(format!("{given} is empty")),
        text if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => Ok(Secret::new(text)),
        _ => Err(format!("{given} contains characters that are not allowed in a header")),
    }
}

/// Loads the secret that `key` of the configuration refers to, if any.
fn read(
    key: &str,
    place: &SecretPlace,
    env: Vec<(OsString, OsString)>,
) -> Result<Option<Secret>, String> {
    let given = match place {
        SecretPlace::Nowhere => return Ok(None),
        SecretPlace::Variable(name) => format!("{key}: the variable {name}"),
        SecretPlace::File(path) => format!("{key}: {path}"),
    };
    let text = match place {
        SecretPlace::File(path) => {
            config_files::read(path).map_err(|problem| format!("{given} {problem}"))
        }
        place => variable(&given, place.variable().unwrap_or_default(), env),
    }?;
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("{given} is empty"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{given} contains characters that no key has, such as spaces"));
    }
    Ok(Some(Secret::new(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Upstream;

    #[test]
    fn a_key_is_read_whole_or_its_place_is_named() {
        let read_env = |value: Option<&str>| {
            let env = value.map(|value| ("OWN_KEY".into(), value.into())).into_iter().collect();
            read("upstream.api_key", &SecretPlace::Variable("OWN_KEY".to_owned()), env)
                .map(|key| key.map(|key| key.expose().to_owned()))
        };
        assert_eq!(read_env(Some(" sk-own\n")), Ok(Some("sk-own".to_owned())));
        for (value, said) in [
            (None, "is not set"),
            (Some(" "), "is empty"),
            (Some("sk own"), "characters"),
            (Some("sk-\u{e9}"), "characters"),
        ] {
            let problem = read_env(value).expect_err("no key");
            assert!(problem.contains("upstream.api_key") && problem.contains(said), "{problem}");
            assert!(!problem.contains("sk"), "{problem}");
        }
        assert_eq!(read("upstream.api_key", &SecretPlace::Nowhere, Vec::new()), Ok(None));
    }

    #[test]
    fn every_upstream_has_its_own_or_its_section_is_named() {
        let given = |header: Option<&str>, key: Option<&str>| {
            let mut config = Config::default();
            let mut other = Upstream::new("https://other.example/v1");
            other.api_key = SecretPlace::Variable("KEY".to_owned());
            other.header_envs = vec![("x-team".to_owned(), "HEADER".to_owned())];
            config.upstreams.insert("other".to_owned(), other);
            let pairs = [("HEADER", header), ("KEY", key)];
            let env =
                pairs.into_iter().filter_map(|(name, value)| Some((name.into(), value?.into())));
            let env: Vec<(OsString, OsString)> = env.collect();
            let problems = read_all(&mut config, || env.clone());
            if !problems.is_empty() {
                return Err(problems);
            }
            let other = &config.upstreams["other"];
            let (name, value) = other.secret_headers[0].clone();
            let key = other.provider_key.as_ref().map(|key| key.expose().to_owned());
            Ok((name, value.expose().to_owned(), key, config.upstream.provider_key.is_some()))
        };
        let expected = ("x-team".to_owned(), "a b".to_owned(), Some("sk-own".to_owned()), false);
        assert_eq!(given(Some(" a b\n"), Some("sk-own")), Ok(expected));
        let problems = given(Some("se\u{e9}cret"), None).expect_err("both are wrong");
        assert_eq!(problems.len(), 2, "{problems:?}");
        for (problem, section) in
            problems.iter().zip(["upstreams.other.api_key", "upstreams.other.headers"])
        {
            assert!(problem.starts_with(section) && !problem.contains("cret"), "{problem}");
        }
    }
}
