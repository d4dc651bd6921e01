//! `[[routes]]`: upstream, sent name and fallbacks by model. Pure: names in, rows out.

use std::collections::BTreeMap;

use super::choices::LargerWhen;
use super::keys::ROUTES;
use super::policies::Policies;
use super::reader::Reader;
use super::upstreams::{DEFAULT_UPSTREAM, Upstream};
use super::{names, prices};
use weir_store::budget::Price;

/// Maximum number of rows.
const MAX_ROUTES: usize = 1000;
/// Maximum number of fallback models per row.
const MAX_FALLBACKS: usize = 8;

/// All rows, in configured order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    pub rows: Vec<Route>,
}

/// `[[routes]]`: one row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// Names, or patterns in which `*` stands for any run of characters.
    pub models: Vec<String>,
    /// Name of the upstream.
    pub upstream: String,
    /// Model name sent to the upstream, if it differs.
    pub send_as: Option<String>,
    /// Models to try if the upstream fails, in this order.
    pub fallback: Vec<String>,
    /// Failures after which they are tried.
    pub fallback_on: Vec<FallbackOn>,
    /// Model to use if a conversation does not fit.
    pub larger: Option<String>,
    pub larger_when: LargerWhen,
    /// Input limit of this row's requests, in addition to limits by model.
    pub max_input_tokens: Option<u64>,
    /// Policy for this row's requests that name none.
    pub policy: Option<String>,
    /// Price of this row's requests, instead of the model's known price.
    pub price: Option<Price>,
}

/// Failure after which a fallback model is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackOn {
    /// One that may pass: no answer, 408, 409, 429 and 5xx.
    Transient,
    /// This status.
    Status(u16),
    /// The account at the provider has no credit left.
    NoCredit,
    /// The provider does not have the model.
    NoModel,
    /// The provider's filter refused the content.
    ContentFilter,
    /// A budget has no room for the request to the model.
    Budget,
}

impl FallbackOn {
    fn parse(text: &str) -> Result<Self, String> {
        let status = || text.parse().ok().filter(|status| (400..600).contains(status));
        match text {
            "transient" => Ok(Self::Transient),
            "no_credit" => Ok(Self::NoCredit),
            "no_model" => Ok(Self::NoModel),
            "content_filter" => Ok(Self::ContentFilter),
            "budget" => Ok(Self::Budget),
            _ => status().map(Self::Status).ok_or_else(|| {
                format!(
                    "has {text:?}; write \"transient\", \"no_credit\", \"no_model\", \"content_filter\", \
                     \"budget\" or a status from 400 to 599, such as \"402\""
                )
            }),
        }
    }
}

impl Route {
    /// Returns the names that are not patterns.
    pub fn exact(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(String::as_str).filter(|name| !name.contains('*'))
    }

    fn patterns(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(String::as_str).filter(|name| name.contains('*'))
    }

    /// Returns whether this row may send the model `sent`.
    pub fn may_send(&self, sent: &str) -> bool {
        match &self.send_as {
            Some(own) => own == sent,
            None => names::candidates(sent).iter().any(|candidate| {
                self.models
                    .iter()
                    .any(|model| names::fits_pattern(candidate, &model.to_ascii_lowercase()))
            }),
        }
    }
}

impl Routes {
    /// Returns the index of the row for `model`: exact names before patterns, then the first. It is
    /// matched as spelled first, then by shorter names: `router/*` matches its models even if the
    /// bare name has a row as well.
    pub fn find(&self, model: &str) -> Option<usize> {
        let first = |fits: &dyn Fn(&Route) -> bool| self.rows.iter().position(fits);
        if self.rows.is_empty() || model.is_empty() {
            return None;
        }
        if let Some(row) = first(&|row| row.exact().any(|name| name == model)) {
            return Some(row);
        }
        let candidates = names::candidates(model);
        let named = |candidate: &str| {
            first(&|row| row.exact().any(|name| name.eq_ignore_ascii_case(candidate)))
        };
        let fitting = |candidate: &str, has_prefix: bool| {
            let fits = |pattern: &str| {
                let pattern = pattern.to_ascii_lowercase();
                let head = pattern.split('*').next().unwrap_or_default();
                (!has_prefix || head.contains('/')) && names::fits_pattern(candidate, &pattern)
            };
            first(&|row| row.patterns().any(fits))
        };
        let spelled = candidates.first()?;
        named(spelled)
            .or_else(|| fitting(spelled, true))
            .or_else(|| candidates.iter().find_map(|candidate| named(candidate)))
            .or_else(|| candidates.iter().find_map(|candidate| fitting(candidate, false)))
    }
}

/// Reads all rows; `upstreams` are the ones they may name.
pub(super) fn read(
    reader: &mut Reader,
    default: &Upstream,
    upstreams: &BTreeMap<String, Upstream>,
    policies: &Policies,
) -> Routes {
    let count = reader.rows("routes");
    if count > MAX_ROUTES {
        reader.refuse(&["routes"], format!("has {count} rows, more than {MAX_ROUTES}"));
        return Routes::default();
    }
    let numbers: Vec<String> = (0..count).map(|row| row.to_string()).collect();
    let rows = numbers.iter().map(|row| route(reader, row, policies)).collect();
    let routes = Routes { rows };
    let upstream_of = |name: &str| match name {
        DEFAULT_UPSTREAM => Some(default),
        name => upstreams.get(name),
    };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (number, row) in routes.rows.iter().enumerate() {
        let text = numbers[number].as_str();
        for name in row.exact() {
            if let Some(before) = seen.insert(name.to_owned(), number) {
                let message = format!("names {name:?}, as routes[{before}] does already");
                reader.refuse(&["routes", text, "models"], message);
            }
        }
        let upstream = row.upstream.as_str();
        if upstream_of(upstream).is_none() {
            let known: Vec<&str> = upstreams.keys().map(String::as_str).collect();
            let message = format!(
                "{upstream:?} is not an upstream; the upstreams are {}",
                [&[DEFAULT_UPSTREAM], known.as_slice()].concat().join(", ")
            );
            reader.refuse(&["routes", text, "upstream"], message);
        }
        let fallback = row.fallback.iter().map(|model| ("fallback", model));
        for (key, model) in fallback.chain(row.larger.iter().map(|model| ("larger", model))) {
            if let Err(problem) = check_fallback(&routes, upstream_of, number, model) {
                reader.refuse(&["routes", text, key], problem);
            }
        }
    }
    routes
}

/// Rejects a fallback to the row itself, and one that would pass on a caller's credential.
fn check_fallback<'u>(
    routes: &Routes,
    upstream_of: impl Fn(&str) -> Option<&'u Upstream>,
    number: usize,
    model: &str,
) -> Result<(), String> {
    let row = &routes.rows[number];
    let found = routes.find(model);
    let is_own_name = row.exact().any(|name| name.eq_ignore_ascii_case(model));
    if is_own_name || (found == Some(number) && row.send_as.is_some()) {
        return Err(format!("{model:?} is a model of this row itself; name another model"));
    }
    let there = found.map_or(DEFAULT_UPSTREAM, |found| &routes.rows[found].upstream);
    if there != row.upstream && upstream_of(there).is_some_and(Upstream::gets_callers_key) {
        return Err(format!(
            "{model:?} goes to the upstream {there:?}, which would receive the caller's own \
             credential. The caller's credential goes only to the default route and to routes \
             with forward_caller_key; fallback never leads to another route that would receive \
             it. Give {there:?} a key of weir's own (api_key)"
        ));
    }
    Ok(())
}

fn route(reader: &mut Reader, row: &str, policies: &Policies) -> Route {
    let path = ["routes", row];
    let mut keys = reader.at(&ROUTES, &path);
    if keys.is_absent("models") {
        keys.refuse("models", "is missing: a route needs models, such as [\"gpt-4o*\"]");
    }
    let models = keys.list("models", |text| match text.trim() {
        "" => Err("has an empty name; write a model's name, such as \"gpt-4o*\"".to_owned()),
        text => Ok(text.to_owned()),
    });
    let upstream = keys.written_text("upstream", |text| Ok(text.to_owned()));
    let mut route = Route {
        models: models.unwrap_or_default(),
        upstream: upstream.unwrap_or_else(|| DEFAULT_UPSTREAM.to_owned()),
        send_as: keys.written_text("send_as", model_name),
        fallback: keys.list("fallback", model_name).unwrap_or_default(),
        fallback_on: keys
            .list("fallback_on", |text| FallbackOn::parse(text.trim()))
            .unwrap_or_else(|| vec![FallbackOn::Transient]),
        larger: keys.written_text("larger", model_name),
        larger_when: keys.get("larger_when"),
        max_input_tokens: keys.written("max_input_tokens"),
        policy: keys.written_text("policy", |text| policies.read_name(text)),
        price: None,
    };
    if route.models.is_empty() && !keys.is_absent("models") {
        keys.refuse("models", "is empty: a route needs models, such as [\"gpt-4o*\"]");
    }
    let twice =
        route.fallback.iter().enumerate().find(|(at, model)| route.fallback[..*at].contains(model));
    if let Some((_, model)) = twice {
        keys.refuse("fallback", format!("names {model:?} twice"));
    }
    if route.fallback.len() > MAX_FALLBACKS {
        keys.refuse("fallback", format!("has more than {MAX_FALLBACKS} models"));
    }
    let price = [path[0], path[1], "price"];
    if !reader.is_absent(&price) {
        route.price = prices::price(reader, &price, true);
    }
    route
}

/// Parses one model's name.
fn model_name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("is empty; write a model's name".to_owned()),
        text if text.contains('*') => Err(format!("{text:?} is a pattern; write one model's name")),
        text if text.len() > names::MAX_NAME_BYTES => Err("is too long for a name".to_owned()),
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;
    use crate::config::{Config, load};

    fn loaded(text: &str) -> Config {
        load(Figment::from(Toml::string(text))).expect("this configuration is right").0
    }

    #[test]
    fn every_key_of_a_row_and_of_an_upstream_is_read() {
        let config = loaded(
            r#"
            [upstreams.other]
            url = "https://other.example/v1"
            api_key = "file:kept/key"
            retries.max = 1
            [upstreams.other.headers]
            x-a = "b c"
            [upstreams.open]
            url = "https://open.example/v1"
            forward_caller_key = true
            [[routes]]
            models = ["small", " llama* "]
            upstream = "other"
            send_as = "llama-8b"
            fallback = ["qwen"]
            fallback_on = ["402", "no_model"]
            larger = "big"
            larger_when = "compacted"
            max_input_tokens = 9
            policy = "zones"
            [routes.price]
            input_usd_per_mtok = 1
            output_usd_per_mtok = 2
            [[routes]]
            models = ["qwen", "big"]
            upstream = "other"
            "#,
        );
        let other = Upstream {
            api_key: crate::config::SecretPlace::File("kept/key".into()),
            max_retries: 1,
            headers: vec![("x-a".into(), "b c".into())],
            ..Upstream::new("https://other.example/v1")
        };
        let open =
            Upstream { forward_caller_key: true, ..Upstream::new("https://open.example/v1") };
        let expected = BTreeMap::from([("other".to_owned(), other), ("open".to_owned(), open)]);
        assert_eq!(format!("{:?}", config.upstreams), format!("{expected:?}"));
        let price = config.routes.rows[0].price.as_ref().map(ToString::to_string);
        assert_eq!(price.as_deref(), Some("in 1 out 2"));
        let expected = Route {
            models: vec!["small".into(), "llama*".into()],
            upstream: "other".into(),
            send_as: Some("llama-8b".into()),
            fallback: vec!["qwen".into()],
            fallback_on: vec![FallbackOn::Status(402), FallbackOn::NoModel],
            larger: Some("big".into()),
            larger_when: LargerWhen::Cut,
            max_input_tokens: Some(9),
            policy: Some("zones".into()),
            price: config.routes.rows[0].price.clone(),
        };
        assert_eq!(config.routes.rows[0], expected);
        assert_eq!(config.routes.rows[1].upstream, "other");
        assert_eq!(config.routes.rows[1].fallback_on, [FallbackOn::Transient]);
    }

    #[test]
    fn a_name_goes_before_a_pattern_and_its_own_spelling_before_others() {
        let row = |models: &[&str]| Route {
            models: models.iter().map(|&model| model.to_owned()).collect(),
            ..Route::default()
        };
        let routes = Routes {
            rows: vec![
                row(&["gpt*"]),
                row(&["gpt-4o"]),
                row(&["GPT-4o", "other"]),
                row(&["router/*"]),
                row(&["vendor/llama"]),
                row(&["vendor*"]),
            ],
        };
        for (model, expected) in [
            ("gpt-4o", Some(1)),
            ("GPT-4o", Some(2)),
            ("Gpt-4o", Some(1)),
            ("openai/gpt-4o", Some(1)),
            ("gpt-4o-mini", Some(0)),
            ("openai/gpt-4o-mini", Some(0)),
            ("router/gpt-4o-mini", Some(3)),
            ("router/gpt-4o", Some(3)),
            ("Other", Some(2)),
            ("Vendor/Llama", Some(4)),
            ("llama", None),
            ("", None),
            ("claude", None),
            ("vendor/gpt-4o", Some(1)),
            ("vendor/gemma", Some(5)),
        ] {
            assert_eq!(routes.find(model), expected, "{model}");
        }
        assert_eq!(Routes::default().find("gpt-4o"), None);
    }
}
