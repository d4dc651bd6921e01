//! Connection tests of `weir check --connect`: the store, Redis and each upstream, one line each.
//! Sends no conversation; an upstream for which weir has a key gets one question of a few tokens.

use std::time::Duration;

use http::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::store_path;
use crate::config::{Config, Secret, Upstream, upstreams};
use crate::proxy::hold::bound::CLOSED;
use crate::proxy::hold::budgets::scope::resolve;
use crate::upstream::{
    Client, Endpoint, Inbound, ModelsAnswer, Outbound, OutboundBody, ProviderKey, Route, Target,
    ask_models, find_api,
};
use weir_engine::wire::clamp;
use weir_store::Store;
use weir_store::budget::{Kind, Price};
use weir_store::redis::Redis;

/// Timeout of one answer of an upstream.
const DEADLINE: Duration = Duration::from_secs(20);
/// Maximum size of an answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum length of an upstream's own message in the output.
const MAX_MESSAGE_CHARS: usize = 200;
/// Output limit of the test question. Some models refuse less.
const QUESTION_OUTPUT_TOKENS: u64 = 16;
/// Parts of the names of models that do not chat.
const NO_CHAT: [&str; 20] = [
    "audio",
    "babbage",
    "dall",
    "davinci",
    "deep-research",
    "embed",
    "guard",
    "image",
    "instruct",
    "moderation",
    "ocr",
    "realtime",
    "rerank",
    "search",
    "sora",
    "speech",
    "transcribe",
    "tts",
    "video",
    "whisper",
];

/// Result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TestOutcome {
    Works,
    /// Could not be determined; it may work.
    Unclear,
    Fails,
}

/// Connection that was tested.
pub(super) struct Tried {
    /// Configuration key of the connection.
    pub key: String,
    pub outcome: TestOutcome,
    /// Finding, and how to fix it.
    pub message: String,
}

impl Tried {
    fn new(key: impl Into<String>, outcome: TestOutcome, message: impl Into<String>) -> Self {
        Self { key: key.into(), outcome, message: message.into() }
    }
}

/// Tests everything that weir needs besides itself, in the order listed.
pub(super) fn connect(config: Config) -> Vec<Tried> {
    // Redis and PostgreSQL need a runtime; a command has none.
    let tried = std::thread::spawn(move || {
        let (of_store, store) = store(&config);
        let others = super::block_on(async {
            let mut tried = vec![of_store];
            if let Some(store) = store {
                tried.extend(budgets(&config, &store).await);
            }
            tried.extend(redis(&config).await);
            for (name, own) in config.all_upstreams() {
                tried.extend(upstream(&config, name, own).await);
            }
            Ok(tried)
        });
        let untried = |said| vec![Tried::new("upstream.url", TestOutcome::Unclear, said)];
        others.unwrap_or_else(untried)
    });
    let lost = || {
        vec![Tried::new("store", TestOutcome::Fails, "could not be tried because of a bug in weir")]
    };
    tried.join().unwrap_or_else(|_| lost())
}

fn store(config: &Config) -> (Tried, Option<Store>) {
    let key = if config.store.url.is_some() { "store.url" } else { "store.path" };
    match store_path::open_or_say(config, std::env::vars_os()) {
        Err(error) => (Tried::new(key, TestOutcome::Fails, error.to_string()), None),
        Ok(store) => {
            let message = match store.file() {
                Some(file) => format!("{} can be written", file.display()),
                None if config.store.url.is_some() => "the PostgreSQL server answers".to_owned(),
                None => "in memory: its contents are lost when the process ends".to_owned(),
            };
            (Tried::new(key, TestOutcome::Works, message), Some(store))
        }
    }
}

/// Reports budgets in the store that no request counts in, and routes that budgets close.
async fn budgets(config: &Config, store: &Store) -> Vec<Tried> {
    let key = "budgets";
    let set = match store.budgets().await {
        Ok((_, set)) => set,
        Err(error) => return vec![Tried::new(key, TestOutcome::Fails, error.to_string())],
    };
    let closed = closed_routes(config).filter(|_| !set.is_empty());
    let mut tried: Vec<Tried> = closed.into_iter().collect();
    for budget in set {
        let (id, scope) = (budget.id.to_string(), budget.id.scope);
        let problem = match resolve(scope.clone(), &config.models, &config.routes, store).await {
            Ok(counted) if counted == scope => continue,
            Ok(counted) => format!("requests count as {counted}"),
            Err(problem) => problem,
        };
        let message = format!(
            "nothing counts in {id}: {problem}; set it anew, and remove this one with `weir budgets \
             remove '{id}'`"
        );
        tried.push(Tried::new(key, TestOutcome::Fails, message));
    }
    tried
}

/// Lists the routes that callers under a budget cannot use.
fn closed_routes(config: &Config) -> Option<Tried> {
    let has_price = |price: &Price| price.fee(Kind::Request).is_some();
    if config.prices.default.as_ref().is_some_and(has_price) {
        return None;
    }
    let message = format!(
        "has no request_usd_each: callers under a budget get 403 on routes whose cost weir cannot \
         bound, such as {}",
        CLOSED.join(", ")
    );
    Some(Tried::new("prices.default", TestOutcome::Unclear, message))
}

/// Tests whether Redis answers, if it is configured.
async fn redis(config: &Config) -> Option<Tried> {
    let key = "redis.url";
    let redis = match Redis::configured(&config.redis.url, &config.redis.key_prefix) {
        Ok(redis) => redis?,
        Err(error) => return Some(Tried::new(key, TestOutcome::Fails, error.to_string())),
    };
    let (outcome, message) = match redis.ping().await {
        Ok(()) => (TestOutcome::Works, "Redis answers".to_owned()),
        Err(error) => {
            (TestOutcome::Fails, format!("{error}. Start that Redis, or correct the URL"))
        }
    };
    Some(Tried::new(key, outcome, message))
}

/// An upstream under test.
struct Asking<'a> {
    section: String,
    own: &'a Upstream,
    client: Client,
    provider_key: Option<ProviderKey>,
}

impl Asking<'_> {
    /// Returns the headers that weir adds for this upstream.
    fn headers(&self, endpoint: &Endpoint) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(provider_key) = &self.provider_key {
            provider_key.put_into(&mut headers, endpoint);
        }
        let plain = self.own.headers.iter().map(|(name, value)| (name, value.as_str()));
        let secret = self.own.secret_headers.iter().map(|(name, value)| (name, value.expose()));
        for (name, value) in plain.chain(secret) {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                headers.insert(name, value);
            }
        }
        headers
    }

    fn tried(&self, key: &str, outcome: TestOutcome, message: String) -> Tried {
        Tried::new(format!("{}.{key}", self.section), outcome, message)
    }

    fn key_is_refused(&self, status: StatusCode, body: &[u8]) -> Tried {
        let place = match (self.own.api_key.variable(), self.own.api_key.file()) {
            (Some(variable), _) => format!("the variable {variable}"),
            (None, file) => format!("the file {}", file.map_or("", |file| file)),
        };
        let said = self.said(body);
        let message = format!(
            "{} refuses the key ({status}{said}). Put a valid key into {place}",
            self.client.base().url()
        );
        self.tried("api_key", TestOutcome::Fails, message)
    }

    /// Formats an upstream's own message for parentheses: short, on one line, without the key.
    fn said(&self, body: &[u8]) -> String {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let places = [&body["error"]["message"], &body["message"], &body["error"], &body["detail"]];
        let said = places.into_iter().find_map(Value::as_str).unwrap_or_default();
        let secrets = self.own.secret_headers.iter().map(|(_, secret)| secret);
        let said = secrets
            .chain(&self.own.provider_key)
            .map(Secret::expose)
            .filter(|secret| !secret.is_empty())
            .fold(said.to_owned(), |said, secret| said.replace(secret, "***"));
        let plain: String =
            said.chars().filter(|own| !own.is_control()).take(MAX_MESSAGE_CHARS).collect();
        if plain.is_empty() { plain } else { format!(": {plain}") }
    }
}

/// Tests whether an upstream lists its models and, if weir has a key for it, answers a question.
async fn upstream(config: &Config, name: &str, own: &Upstream) -> Vec<Tried> {
    let section = upstreams::section(name);
    let client = match Client::new(own) {
        Ok(client) => client,
        Err(error) => {
            let message = error.said(&section);
            return vec![Tried::new(format!("{section}.url"), TestOutcome::Fails, message)];
        }
    };
    let provider_key =
        own.provider_key.as_ref().and_then(|key| ProviderKey::new(key, client.base()));
    let asking = Asking { section, own, client, provider_key };
    let headers = asking.headers(&Endpoint::Models);
    let base = asking.client.base();
    let url = base.url();
    let answer = timeout(DEADLINE, ask_models(&asking.client, base, &headers)).await;
    let models = match answer {
        Err(_) => {
            let message = format!("{url} does not answer within {} s", DEADLINE.as_secs());
            return vec![asking.tried("url", TestOutcome::Fails, message)];
        }
        Ok(Err(error)) => {
            let message = format!("{error}. Start the server at {url}, or correct the URL");
            return vec![asking.tried("url", TestOutcome::Fails, message)];
        }
        Ok(Ok(ModelsAnswer::Denied { status, body })) => {
            return vec![denied(&asking, status, &body)];
        }
        Ok(Ok(ModelsAnswer::Other { status, body })) if base.names_deployment() => {
            let message =
                format!("{url} does not list its models ({status}{})", asking.said(&body));
            (asking.tried("url", TestOutcome::Unclear, message), Vec::new())
        }
        Ok(Ok(ModelsAnswer::Other { status, body })) => {
            return vec![no_list(&asking, &headers, status, &body).await];
        }
        Ok(Ok(ModelsAnswer::List(models))) => {
            let whose = match (&asking.provider_key, own.gets_callers_key()) {
                (Some(_), _) => "",
                (None, true) => "; weir has no key for it, callers send their own",
                (None, false) => "; weir sends it no key",
            };
            let count = models.len();
            let models_said =
                if count == 1 { "1 model".to_owned() } else { format!("{count} models") };
            let message = format!("{url} lists {models_said}{whose}");
            (asking.tried("url", TestOutcome::Works, message), models)
        }
    };
    let (listed, models) = models;
    let mut tried = vec![listed];
    if asking.provider_key.is_some() {
        tried.push(question(config, &asking, &models).await);
    }
    tried
}

/// Explains a 401 or 403.
fn denied(asking: &Asking<'_>, status: StatusCode, body: &[u8]) -> Tried {
    let url = asking.client.base().url();
    let (outcome, message) = match (&asking.provider_key, asking.own.gets_callers_key()) {
        (Some(_), _) => return asking.key_is_refused(status, body),
        (None, true) => (
            TestOutcome::Works,
            format!("{url} answers and requires a key ({status}); callers send their own"),
        ),
        (None, false) => (
            TestOutcome::Fails,
            format!(
                "{url} requires a key ({status}), and weir has none for it: name the variable that holds \
                 one, such as {}.api_key = \"env:PROVIDER_KEY\"",
                asking.section
            ),
        ),
    };
    asking.tried("url", outcome, message)
}

/// Explains why an upstream does not list its models under its base URL.
async fn no_list(
    asking: &Asking<'_>,
    headers: &HeaderMap,
    status: StatusCode,
    body: &[u8],
) -> Tried {
    let url = asking.client.base().url();
    let said = asking.said(body);
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        let message = format!("{url} answers {status} to GET /models{said}. Try again later");
        return asking.tried("url", TestOutcome::Fails, message);
    }
    let (outcome, message) = match find_api(&asking.client, headers).await {
        Some(right) => (
            TestOutcome::Fails,
            format!(
                "{url} answers {status} to GET /models, and serves its API under {right}: set the URL to \
                 {right}"
            ),
        ),
        None => (
            TestOutcome::Unclear,
            format!(
                "{url} answers {status} to GET /models{said}, and has no list under /v1 either. If \
                 requests fail, correct the URL: use the base URL that you would give to an SDK"
            ),
        ),
    };
    asking.tried("url", outcome, message)
}

/// Sends one short question with weir's own key.
async fn question(config: &Config, asking: &Asking<'_>, models: &[String]) -> Tried {
    let (base, key) = (asking.client.base(), "api_key");
    let url = base.url();
    let unclear = |message: String| asking.tried(key, TestOutcome::Unclear, message);
    let Ok(target) = Target::map(base, "/v1/chat/completions") else {
        return unclear(format!("{url} cannot be tested with a question"));
    };
    let named = target.path_model.clone();
    let model = named.as_deref().or_else(|| cheapest(config, models));
    let Some(model) = model else {
        return unclear(format!("no question was sent: {url} lists no chat model"));
    };
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": "Reply with OK."}],
        clamp::member(model): QUESTION_OUTPUT_TOKENS,
    });
    let mut headers = asking.headers(&Endpoint::Route(Route::Chat));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let body = OutboundBody::Bytes(body.to_string().into());
    let outbound = Outbound { method: Method::POST, target, headers, body };
    let asked = async {
        let Inbound { status, mut body, .. } = asking.client.send(outbound).await?;
        let seen = body.peek(MAX_ANSWER_BYTES).await.to_vec();
        Ok::<_, crate::upstream::SendError>((status, seen))
    };
    let (status, body) = match timeout(DEADLINE, asked).await {
        Err(_) => {
            return unclear(format!("{model} did not answer within {} s", DEADLINE.as_secs()));
        }
        Ok(Err(error)) => return asking.tried("url", TestOutcome::Fails, error.to_string()),
        Ok(Ok(answered)) => answered,
    };
    let said = asking.said(&body);
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => asking.key_is_refused(status, &body),
        StatusCode::PAYMENT_REQUIRED | StatusCode::TOO_MANY_REQUESTS => {
            let message = format!(
                "the key works, but {model} answers {status}{said}. Look at the key's plan, balance \
                 and rate limits at the provider"
            );
            asking.tried(key, TestOutcome::Fails, message)
        }
        status if status.is_success() => {
            let message = format!("the key works: {model} answered a question of a few tokens");
            asking.tried(key, TestOutcome::Works, message)
        }
        status => unclear(format!("{model} answered {status} to a question of a few tokens{said}")),
    }
}

/// Returns the cheapest model by known prices, or the first that may chat if no price is known.
fn cheapest<'a>(config: &Config, models: &'a [String]) -> Option<&'a str> {
    let may_chat = |name: &&String| {
        let name = name.to_ascii_lowercase();
        !NO_CHAT.iter().any(|part| name.contains(part))
    };
    let price = |name: &String| {
        let rates = &config.models.price(name)?.rates;
        Some(rates.input_nano_usd_per_mtok().saturating_add(rates.output_nano_usd_per_mtok()))
    };
    let chat = || models.iter().filter(may_chat);
    let priced = chat().filter_map(|name| Some((price(name)?, name)));
    let least = priced.min_by_key(|(price, _)| *price).map(|(_, name)| name);
    least.or_else(|| chat().next()).map(String::as_str)
}
