//! Gathers the configuration from where it is written: the embedded defaults, `OPENAI_BASE_URL`, a
//! file, the environment, flags. Checks nothing; `config::load` does.

use std::ffi::OsString;
use std::path::Path;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Error, Figment, Metadata, Profile, Provider, Source};

use crate::config::DEFAULT_TOML;

/// The beginning of the variables that set keys.
const ENV_PREFIX: &str = "WEIR_";
/// Variables with this beginning that are no keys: the path of the file itself.
const ENV_NOT_KEYS: &[&str] = &["WEIR_CONFIG"];

/// A key given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// As typed, such as `--listen`.
    pub name: &'static str,
    /// Such as `server.listen`.
    pub key: &'static str,
    pub value: String,
}

/// All sources, each going before those listed earlier: the defaults, `OPENAI_BASE_URL` (as
/// `upstream.url`), the file, `WEIR_SECTION__KEY` among `env`, `flags`.
pub fn figment(
    file: Option<&Path>,
    openai_base_url: Option<String>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    flags: impl IntoIterator<Item = Flag>,
) -> Figment {
    let mut figment = Figment::from(Document::defaults());
    if let Some(url) = openai_base_url.filter(|url| !url.trim().is_empty()) {
        figment = figment.merge(Given::new("OPENAI_BASE_URL", ["upstream", "url"], url));
    }
    if let Some(path) = file {
        figment = figment.merge(Document::file(path));
    }
    let mut variables: Vec<_> = env
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| !ENV_NOT_KEYS.contains(&name.as_str()))
        .collect();
    variables.sort();
    for (name, value) in variables {
        if let Some(key) = name.strip_prefix(ENV_PREFIX) {
            let key = key.to_lowercase();
            // Text that is no Unicode is refused with the rest that is wrong, not dropped.
            let value = value.to_string_lossy().into_owned();
            figment = figment.merge(Given::new(&name, key.split("__"), value));
        }
    }
    for flag in flags {
        figment = figment.merge(Given::new(flag.name, flag.key.split('.'), flag.value));
    }
    figment
}

/// A TOML document, read and parsed when it was made.
struct Document {
    metadata: Metadata,
    parsed: Result<Dict, String>,
}

impl Document {
    fn defaults() -> Self {
        // As a file, so that its values have to be of their types.
        let metadata = Metadata::from("defaults", Source::File("the defaults".into()));
        Self {
            metadata,
            parsed: parse(DEFAULT_TOML),
        }
    }

    fn file(path: &Path) -> Self {
        Self {
            metadata: Metadata::from("file", Source::File(path.to_owned())),
            parsed: std::fs::read_to_string(path)
                .map_err(|error| format!("cannot be read: {error}"))
                .and_then(|text| parse(&text)),
        }
    }
}

fn parse(text: &str) -> Result<Dict, String> {
    Toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(0, |before| before.matches('\n').count()) + 1;
        format!("line {line} is no TOML: {}", error.message())
    })
}

impl Provider for Document {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        match &self.parsed {
            Ok(dict) => Ok(Profile::Default.collect(dict.clone())),
            Err(message) => {
                let mut error = Error::from(message.clone());
                error.metadata = Some(self.metadata.clone());
                Err(error)
            }
        }
    }
}

/// One key given as text under a name of its own.
struct Given {
    name: String,
    dict: Dict,
}

impl Given {
    fn new<'a>(name: &str, path: impl IntoIterator<Item = &'a str>, value: String) -> Self {
        let parts: Vec<&str> = path.into_iter().collect();
        let mut value = Value::from(value);
        for part in parts.iter().skip(1).rev() {
            value = Value::from(Dict::from([((*part).to_owned(), value)]));
        }
        let section = parts.first().copied().unwrap_or_default().to_owned();
        Self {
            name: name.to_owned(),
            dict: Dict::from([(section, value)]),
        }
    }
}

impl Provider for Given {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}
