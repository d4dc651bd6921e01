//! The upstreams that there are: for each its client, what weir sends there of its own, what it gets
//! of callers' headers, what it has taught, and whether it is passed over. Decides no route.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::header::{ACCEPT_ENCODING, HeaderValue};
use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

use super::ProxyError;
use super::asking::Refusers;
use super::headers::{self, Via};
use super::learned::Learned;
use super::misplaced::BaseUrl;
use super::ways::Taught;
use crate::config::{self, Config, DEFAULT_UPSTREAM, Learning};
use crate::store::{OpenError, Store};
use crate::upstream::breaker::{Breaker, Change};
use crate::upstream::retry::{Patience, Tried};
use crate::upstream::{Client, Endpoint, OwnKey, SendError};

/// One upstream.
pub struct Upstream {
    pub name: Arc<str>,
    pub client: Client,
    /// Scheme, host and port.
    pub origin: Arc<str>,
    /// What goes out in the place of callers' credentials; `None` where weir has none.
    pub own_key: Option<OwnKey>,
    /// Put on every request.
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether it gets callers' own credentials.
    pub gets_callers_key: bool,
    pub patience: Patience,
    pub taught: Arc<Taught>,
    pub(super) base_url: BaseUrl,
    breaker: Mutex<Breaker>,
    /// Whether there is anything in the breaker.
    is_troubled: AtomicBool,
    begun: Instant,
}

/// All upstreams.
pub struct Upstreams {
    pub default: Arc<Upstream>,
    named: BTreeMap<String, Arc<Upstream>>,
}

impl Upstreams {
    /// Those that `config` names; `client` is the default's.
    pub fn new(config: &Config, client: Client, store: &Store) -> Result<Self, OpenError> {
        let default = (DEFAULT_UPSTREAM, &config.upstream);
        let default = Upstream::new(default, client, config.learning, store)?;
        let mut named = BTreeMap::new();
        for (name, upstream) in &config.upstreams {
            let client = client_of(name, upstream)?;
            let upstream = Upstream::new((name, upstream), client, config.learning, store)?;
            named.insert(name.clone(), Arc::new(upstream));
        }
        Ok(Self { default: Arc::new(default), named })
    }

    /// Those that `new` names, after `old`: one that has not changed goes on with its connections, and what
    /// one has taught that is still the same to the same callers goes on in any case.
    pub fn renewed(&self, [old, new]: [&Config; 2], store: &Store) -> Result<Self, OpenError> {
        let default = (DEFAULT_UPSTREAM, &new.upstream);
        let before = Some((&old.upstream, &self.default));
        let default = renewed(default, before, [old.learning, new.learning], store)?;
        let mut named = BTreeMap::new();
        for (name, upstream) in &new.upstreams {
            let before = old.upstreams.get(name).zip(self.named.get(name));
            let own = (name.as_str(), upstream);
            let upstream = renewed(own, before, [old.learning, new.learning], store)?;
            named.insert(name.clone(), upstream);
        }
        Ok(Self { default, named })
    }

    /// The one called `name`; the default where there is none.
    pub fn find(&self, name: &str) -> &Arc<Upstream> {
        self.named.get(name).unwrap_or(&self.default)
    }

    /// All of them, the default first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        std::iter::once(&self.default).chain(self.named.values())
    }
}

/// A client for the upstream called `name`.
fn client_of(name: &str, config: &config::Upstream) -> Result<Client, OpenError> {
    let section = config::upstreams::section(name);
    Client::new(config).map_err(|error| OpenError::System { said: error.said(&section) })
}

/// An upstream by another configuration than that of `before`.
fn renewed(
    (name, config): (&str, &config::Upstream),
    before: Option<(&config::Upstream, &Arc<Upstream>)>,
    learning: [Learning; 2],
    store: &Store,
) -> Result<Arc<Upstream>, OpenError> {
    let learns_alike = learning[0] == learning[1];
    if let Some((old, upstream)) = before
        && learns_alike
        && old == config
    {
        return Ok(Arc::clone(upstream));
    }
    let mut new = Upstream::new((name, config), client_of(name, config)?, learning[1], store)?;
    if let Some((old, upstream)) = before
        && learns_alike
        && old.ask_usage == config.ask_usage
        && upstream.origin == new.origin
        && upstream.gets_callers_key == new.gets_callers_key
    {
        new.taught = Arc::clone(&upstream.taught);
    }
    Ok(Arc::new(new))
}

impl Upstream {
    fn new(
        (name, config): (&str, &config::Upstream),
        client: Client,
        learning: Learning,
        store: &Store,
    ) -> Result<Self, OpenError> {
        let unfit = |what: String| OpenError::System { said: what };
        let own_key = config.own_key.as_ref().map(|secret| {
            OwnKey::new(secret, client.base()).ok_or_else(|| {
                unfit("weir's own key for the provider holds characters that no header may".into())
            })
        });
        let own_key = own_key.transpose()?;
        let plain = config.headers.iter().map(|(name, value)| (name, value.as_str(), false));
        let secret = config.secret_headers.iter().map(|(name, value)| (name, value.expose(), true));
        let mut headers = Vec::new();
        for (header, value, is_secret) in plain.chain(secret) {
            let pair = HeaderName::try_from(header).ok().zip(HeaderValue::from_str(value).ok());
            let Some((header, mut value)) = pair else {
                return Err(unfit(format!("a header of the upstream {name} is none: {header:?}")));
            };
            value.set_sensitive(is_secret);
            headers.push((header, value));
        }
        let origin: Arc<str> = client.base().origin().into();
        // What is learned at one address may differ by what is sent there.
        let place = match name {
            DEFAULT_UPSTREAM => origin.to_string(),
            name => format!("{name} {origin}"),
        };
        let gets_callers_key = config.gets_callers_key() && own_key.is_none();
        let learned = Learned::new(store.clone(), place, !gets_callers_key, learning);
        let refusers = Refusers::new(config.ask_usage);
        Ok(Self {
            name: name.into(),
            client,
            own_key,
            headers,
            gets_callers_key,
            patience: Patience {
                max_retries: config.max_retries,
                max_wait_ms: config.retry_max_wait_ms,
            },
            taught: Arc::new(Taught {
                name: name.into(),
                origin: (name != DEFAULT_UPSTREAM).then(|| Arc::clone(&origin)),
                learned: Arc::new(learned),
                refusers,
            }),
            origin,
            base_url: BaseUrl::default(),
            breaker: Mutex::default(),
            is_troubled: AtomicBool::new(false),
            begun: Instant::now(),
        })
    }

    /// A caller's headers as this upstream gets them.
    pub fn outbound(&self, callers: HeaderMap, via: &Via, endpoint: &Endpoint) -> HeaderMap {
        let mut headers = headers::outbound(callers, via);
        self.put_own(&mut headers, endpoint);
        headers
    }

    /// Takes out what this upstream does not get of a caller's, and puts in what weir sends there.
    pub fn put_own(&self, headers: &mut HeaderMap, endpoint: &Endpoint) {
        match &self.own_key {
            Some(own_key) => own_key.put_into(headers, endpoint),
            None if !self.gets_callers_key => OwnKey::take_out(headers),
            None => {}
        }
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
    }

    /// [`Self::outbound`], where the answer's usage is read.
    pub fn outbound_read(&self, callers: HeaderMap, via: &Via, endpoint: &Endpoint) -> HeaderMap {
        let mut headers = self.outbound(callers, via, endpoint);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers
    }

    /// Why there is no answer from it. What the client says of its settings names the default's section.
    pub fn error(&self, error: SendError) -> ProxyError {
        let error = ProxyError::from(error);
        if &*self.name == DEFAULT_UPSTREAM {
            return error;
        }
        let message = error.message.replace("(upstream.", &format!("(upstreams.{}.", self.name));
        ProxyError { message, ..error }
    }

    /// Its headers as the caller gets them.
    pub fn inbound(&self, upstreams: HeaderMap) -> HeaderMap {
        let mut headers = headers::inbound(upstreams);
        if !self.gets_callers_key {
            OwnKey::clean_answer(&mut headers);
        }
        headers
    }

    /// Whether a request may go there while another upstream could take it as well.
    pub fn lets_through(&self) -> bool {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return true;
        }
        let now_ms = self.now_ms();
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner).lets_through(now_ms)
    }

    /// Notes how a request came back.
    pub fn note(&self, tried: Tried) {
        let is_trouble = tried.is_trouble();
        if !is_trouble && !self.is_troubled.load(Ordering::Relaxed) {
            return;
        }
        let now_ms = self.now_ms();
        let mut breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        let change = match is_trouble {
            true => breaker.failed(now_ms),
            false => breaker.answered(),
        };
        self.is_troubled.store(is_trouble, Ordering::Relaxed);
        drop(breaker);
        let upstream = &*self.name;
        match change {
            Change::None => {}
            Change::Opened => tracing::warn!(
                target: "weir::upstream",
                event = "breaker",
                state = "open",
                upstream,
                "an upstream has failed several times in a row: it is passed over for a while where \
                 there is another"
            ),
            Change::Closed => tracing::info!(
                target: "weir::upstream",
                event = "breaker",
                state = "closed",
                upstream,
                "an upstream answers again"
            ),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
