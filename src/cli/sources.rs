//! Sources of the configuration: the embedded defaults, `OPENAI_BASE_URL` and OpenTelemetry's own
//! variables, a file, the environment, flags. Checks nothing; `config::load` does.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::Path;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Error, Figment, Metadata, Profile, Provider, Source};

use super::config_files;
use crate::config::{self, Config, DEFAULT_TOML, DEFAULTS, Problem};

/// Prefix of variables that set keys.
const ENV_PREFIX: &str = "WEIR_";
/// Variables with this prefix that are not keys: the path of the file itself.
const ENV_NOT_KEYS: &[&str] = &["WEIR_CONFIG"];

/// OpenTelemetry's own variable for `traces.endpoint`. Those of headers and the name are no keys.
const OTEL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Name of the file among the sources.
const FILE: &str = "file";

/// Loads the configuration of `figment`, or returns its problems as lines of a command's error.
pub(super) fn config_of(figment: Figment) -> Result<Config, String> {
    let loaded = config::load(figment).map_err(|problems| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nweir: ")
    });
    Ok(loaded?.0)
}

/// Whether the value of `key` in `figment` comes from the file.
pub fn is_of_file(figment: &Figment, key: &str) -> bool {
    figment.find_metadata(key).is_some_and(|metadata| metadata.name == FILE)
}

/// Whether the value of `key` in `figment` is the default.
pub fn is_default(figment: &Figment, key: &str) -> bool {
    figment.find_metadata(key).is_some_and(|metadata| metadata.name == DEFAULTS)
}

/// Lists the sources of `figment` besides the defaults: the file by its path, variables and flags
/// by their names.
pub fn origins(figment: &Figment) -> Vec<String> {
    let given = figment.metadata().filter(|metadata| metadata.name != DEFAULTS);
    let mut origins: Vec<String> = given
        .map(|metadata| match &metadata.source {
            Some(Source::File(path)) => path.display().to_string(),
            _ => metadata.name.to_string(),
        })
        .collect();
    // One flag may set two keys.
    origins.dedup();
    origins
}

/// Adds to `problems` the variables and flags that set their keys, if no origin is known yet.
pub fn name_origins(figment: &Figment, problems: &mut [Problem]) {
    for problem in problems.iter_mut().filter(|problem| problem.origin.is_empty()) {
        let given = figment.find_metadata(&problem.key);
        if let Some(metadata) = given.filter(|it| it.name != FILE && it.name != DEFAULTS) {
            problem.origin = metadata.name.to_string();
        }
    }
}

/// Key given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// As typed, such as `--listen`.
    pub name: Cow<'static, str>,
    /// Such as `server.listen`.
    pub key: Cow<'static, str>,
    pub value: String,
}

/// Combines all sources; each takes precedence over those before it: the defaults,
/// `OPENAI_BASE_URL` (as `upstream.url`) and OpenTelemetry's variables, the file, `WEIR_SECTION__KEY` among `env`, `flags`.
pub fn figment(
    file: Option<&Path>,
    openai_base_url: Option<String>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    flags: impl IntoIterator<Item = Flag>,
) -> Figment {
    figment_of(file.map(Document::file).as_ref(), openai_base_url, env, flags)
}

/// Combines the sources with a file that was read before.
pub fn figment_of(
    file: Option<&Document>,
    openai_base_url: Option<String>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    flags: impl IntoIterator<Item = Flag>,
) -> Figment {
    let mut figment = Figment::from(&Document::defaults());
    if let Some(url) = openai_base_url.filter(|url| !url.trim().is_empty()) {
        let path = ["upstream", "url"].into_iter();
        figment = figment.merge(&Document::key("OPENAI_BASE_URL", path, url));
    }
    let env: Vec<(OsString, OsString)> = env.into_iter().collect();
    if let Some(endpoint) = of_opentelemetry(&env) {
        let path = ["traces", "endpoint"].into_iter();
        figment = figment.merge(&Document::key(OTEL_ENDPOINT, path, endpoint));
    }
    if let Some(file) = file {
        figment = figment.merge(file);
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
            let mut path: Vec<&str> = key.split("__").collect();
            if path.len() == 1 {
                // No key is this short. Next to the section's keys it is refused; instead of them
                // it would hide the file's values.
                path.push("");
            }
            // Text that is not Unicode is refused with other errors, not dropped.
            let value = value.to_string_lossy().into_owned();
            figment = figment.merge(&Document::key(&name, path.into_iter(), value));
        }
    }
    for flag in flags {
        figment = figment.merge(&Document::key(&flag.name, flag.key.split('.'), flag.value));
    }
    figment
}

/// Returns the collector that OpenTelemetry's own variables name; none if they turn traces off.
fn of_opentelemetry(env: &[(OsString, OsString)]) -> Option<String> {
    let value = |name: &str| {
        let (_, value) = env.iter().find(|(own, _)| own == name)?;
        let value = value.to_str()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    let is = |name: &str, off: &str| value(name).is_some_and(|own| own.eq_ignore_ascii_case(off));
    let is_off = is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none");
    value(OTEL_ENDPOINT).filter(|_| !is_off)
}

/// Source of settings: a TOML document, read and parsed at creation, or a single key.
pub struct Document {
    metadata: Metadata,
    parsed: Result<Dict, String>,
    /// Whether its last line is complete.
    is_ended: bool,
}

impl Document {
    fn defaults() -> Self {
        // Parsed like a file, so that its values must have the right types.
        let metadata = Metadata::from(DEFAULTS, Source::File("the defaults".into()));
        Self { metadata, parsed: parse(DEFAULT_TOML), is_ended: true }
    }

    /// Returns a single key that is given as text, under its own name.
    fn key<'a>(name: &str, path: impl DoubleEndedIterator<Item = &'a str>, value: String) -> Self {
        let nested = |value, part: &str| Value::from(Dict::from([(part.to_owned(), value)]));
        let dict = path.rev().fold(Value::from(value), nested).into_dict();
        let metadata = Metadata::named(name.to_owned());
        Self { metadata, parsed: Ok(dict.unwrap_or_default()), is_ended: true }
    }

    /// Reads a file.
    pub fn file(path: &Path) -> Self {
        Self::read(path, std::fs::File::open(path).and_then(bounded))
    }

    /// Reads a file only if it is a regular one.
    pub fn regular_file(path: &Path) -> Self {
        Self::read(path, config_files::open(path).and_then(bounded))
    }

    fn read(path: &Path, text: std::io::Result<String>) -> Self {
        let text = text.map_err(|error| {
            let cure = match error.kind() {
                std::io::ErrorKind::NotFound => ". `weir init` writes a configuration",
                _ => "",
            };
            format!("cannot be read: {}{cure}", super::reason(&error))
        });
        Self {
            metadata: Metadata::from(FILE, Source::File(path.to_owned())),
            is_ended: text.as_ref().is_ok_and(|text| text.ends_with('\n')),
            parsed: text.and_then(|text| parse(&text)),
        }
    }

    /// Whether its last line ends with a newline, as in nearly all complete files.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether it could be read and sets nothing: only blanks, comments and headings.
    pub fn is_empty(&self) -> bool {
        fn says_nothing(value: &Value) -> bool {
            value.as_dict().is_some_and(|dict| dict.values().all(says_nothing))
        }
        self.parsed.as_ref().is_ok_and(|dict| dict.values().all(says_nothing))
    }
}

fn parse(text: &str) -> Result<Dict, String> {
    Toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(0, |before| before.matches('\n').count()) + 1;
        format!("line {line} is not valid TOML: {}", error.message())
    })
}

impl Provider for &Document {
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

/// Maximum size of a configuration file: a device may go on without end.
const MAX_FILE_BYTES: u64 = 16 << 20;

fn bounded(file: std::fs::File) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_FILE_BYTES {
        true => Err(std::io::Error::other("it has more than 16 MiB")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cli::provider_key;
    use crate::config::{Config, load};

    /// File that is removed on drop.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str, text: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-{}-{name}", std::process::id()));
            std::fs::write(&path, text).expect("the temporary directory can be written");
            Self(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            // If the removal fails, the system cleans up.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn env(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn flag(name: &'static str, key: &'static str, value: &str) -> Flag {
        let value = value.to_owned();
        Flag { name: name.into(), key: key.into(), value }
    }

    fn loaded(figment: Figment) -> Config {
        load(figment).expect("this configuration is right").0
    }

    fn problems(figment: Figment) -> Vec<String> {
        let problems = load(figment).expect_err("this configuration is wrong");
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn later_sources_go_before_earlier_ones() {
        let file = Temporary::new("order.toml", "[upstream]\nurl = \"https://file/v1\"");
        let openai = || Some("https://openai/v1".to_owned());
        let variables = || env(&[("WEIR_UPSTREAM__URL", "https://env/v1"), ("HOME", "/")]);
        let flags = [flag("--upstream", "upstream.url", "https://flag/v1")];
        let url = |figment| loaded(figment).upstream.url;
        assert_eq!(url(figment(None, None, [], [])), "https://api.openai.com/v1");
        assert_eq!(url(figment(None, Some(String::new()), [], [])), "https://api.openai.com/v1");
        assert_eq!(url(figment(None, openai(), [], [])), "https://openai/v1");
        assert_eq!(url(figment(Some(&file.0), openai(), [], [])), "https://file/v1");
        assert_eq!(url(figment(Some(&file.0), openai(), variables(), [])), "https://env/v1");
        assert_eq!(url(figment(Some(&file.0), openai(), variables(), flags)), "https://flag/v1");
    }

    #[test]
    fn text_from_the_environment_is_read_as_what_the_key_needs() {
        let variables = env(&[
            ("WEIR_SERVER__MAX_CONNECTIONS", "1_000"),
            ("WEIR_SERVER__ALLOWED_HOSTS", "a.example, b.example"),
            ("WEIR_CORS__ALLOW_ORIGINS", ""),
            ("WEIR_CONTEXT__LOW", ".5"),
            ("WEIR_CONTEXT__NOTES", "off"),
            ("WEIR_LOG__LEVEL", "debug"),
            ("WEIR_CONFIG", "/etc/weir.toml"),
        ]);
        let config = loaded(figment(None, None, variables, []));
        assert_eq!(config.server.max_connections, 1000);
        assert_eq!(config.server.allowed_hosts, ["a.example", "b.example"]);
        assert!(config.cors.allow_origins.is_empty());
        assert_eq!(config.context.policy.low_permille, 500);
        assert_eq!(config.context.policy.notes, weir_engine::compact::Notes::Nothing);
        assert_eq!(config.log.level, "debug");
    }

    #[test]
    fn a_problem_says_which_source_it_is_from() {
        let file =
            Temporary::new("origin.toml", "[log]\nlevel = 7\n[server]\nmax_messages = \"9\"");
        let variables = env(&[("WEIR_CONTEXT__LOW", "low"), ("WEIR_LISTEN", "1")]);
        let flags = [flag("--listen", "server.listen", "here")];
        let openai = Some("nowhere".to_owned());
        let path = file.0.display();
        assert_eq!(
            problems(figment(Some(&file.0), openai, variables, flags)),
            [
                "server.listen (--listen): \"here\" is not a listen address; write a port, such as \
                 8400, or an IP address and a port, such as 127.0.0.1:8400 (0.0.0.0:8400 for all \
                 of this machine's addresses)",
                &format!(
                    "server.max_messages ({path}): \"9\" is not a whole number from 1 to 10000000"
                ),
                "upstream.url (OPENAI_BASE_URL): does not begin with https:// or http://; write it \
                 as you would for an SDK, such as https://api.openai.com/v1",
                "context.low (WEIR_CONTEXT__LOW): \"low\" is not a share from 0.001 to 1 with at most \
                 three decimals, like 0.625",
                &format!(
                    "log.level ({path}): 7 is not one of \"error\", \"warn\", \"info\", \"debug\", \
                     \"trace\""
                ),
                "listen (WEIR_LISTEN): there is no such key; did you mean admin.listen or server.listen?",
            ]
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_device_without_end_is_an_error() {
        let document = Document::file(Path::new("/dev/zero"));
        assert_eq!(document.parsed, Err("cannot be read: it has more than 16 MiB".to_owned()));
    }

    #[test]
    fn a_file_that_cannot_be_read_or_parsed_is_one_clear_line() {
        let missing = std::env::temp_dir().join("weir-there-is-no-such-file.toml");
        let problem = problems(figment(Some(&missing), None, [], []));
        let start = format!("{}: cannot be read: ", missing.display());
        assert!(matches!(&problem[..], [one] if one.starts_with(&start)), "{problem:?}");

        let file = Temporary::new("syntax.toml", "[log]\nlevel = info\n");
        let problem = problems(figment(Some(&file.0), None, [], []));
        let start = format!("{}: line 2 is not valid TOML: ", file.0.display());
        assert!(matches!(&problem[..], [one] if one.starts_with(&start)), "{problem:?}");
    }

    #[test]
    fn variables_of_opentelemetry_set_what_nothing_else_does() {
        let traces = |more: &[(&str, &str)]| {
            let given = [
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "key=secret"),
                ("OTEL_SERVICE_NAME", "gateway"),
            ];
            let variables = env(&[&given[..], more].concat());
            let mut config = loaded(figment(None, None, variables.clone(), []));
            let problems = provider_key::read_all(&mut config, || variables.clone());
            assert_eq!(problems, Vec::<String>::new());
            let traces = config.traces;
            (traces.endpoint, traces.service_name, traces.headers.len())
        };
        let expected =
            |endpoint: &str, name: &str, headers| (endpoint.to_owned(), name.to_owned(), headers);
        assert_eq!(traces(&[]), expected("http://c:4318/v1/traces", "gateway", 1));
        let own = [("WEIR_TRACES__ENDPOINT", "https://d")];
        assert_eq!(traces(&own), expected("https://d/v1/traces", "gateway", 1));
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(traces(&[off]), expected("", "weir", 0), "{off:?}");
        }
    }

    #[test]
    fn a_variable_over_a_whole_section_is_refused() {
        let file = Temporary::new("section.toml", "[server]\nmax_messages = 9");
        let variables = env(&[
            ("WEIR_SERVER", "x"),
            ("WEIR_SERVER__LISTEN__PORT", "1"),
            ("WEIR_LIMITS", ""),
            ("WEIR_", ""),
        ]);
        assert_eq!(
            problems(figment(Some(&file.0), None, variables, [])),
            [
                "server.listen (WEIR_SERVER__LISTEN__PORT): a table is not text in quotes, or a whole number",
                "limits (WEIR_LIMITS): is a list: write each of its rows under [[limits]]",
                "WEIR_: there is no such key; the sections are admin, auth, budgets, cache, context, \
                 conversations, cors, \
                 events, learning, ledger, limits, log, models, policies, prices, redis, routes, server, \
                 store, summaries, traces, upstream, upstreams",
                "server (WEIR_SERVER): is a section and has no value of its own",
            ]
        );
    }
}
