//! Handling of one request, by phases: admit, plan, hold, send, relay, settle. [`Proxy::handle`]
//! shows their order. Knows nothing of listeners or of how errors are rendered.

pub mod admit;
mod cache;
mod chain;
pub mod compaction;
pub mod conversations;
pub mod error;
pub mod events;
mod headers;
pub mod hold;
mod job;
pub mod live;
mod logged;
pub mod metrics;
mod outbox;
pub mod plan;
mod profile;
mod random;
pub mod recall;
pub mod record;
pub mod relay;
mod runtime;
pub mod send;
mod settings;
pub mod settle;
pub mod summaries;
pub mod traces;
pub mod upstreams;

use std::sync::Arc;

use http::{HeaderMap, Method, Response};
use serde_json::Value;

pub use self::admit::admission::Admission;
use self::admit::attribution;
pub use self::admit::caller::Caller;
pub use self::admit::host;
use self::admit::request::AskedCompaction;
pub use self::admit::request::{
    Asked, ChatRequest, Pass, PassBody, RequestOptions, RequestedModel, Room,
};
use self::compaction::answer::OwnAnswer;
use self::conversations::pages::Pages;
pub use self::error::{ErrorKind, ProxyError, SetupError};
use self::events::{Event, Events};
pub use self::hold::journal::Journal;
pub use self::live::Live;
pub use self::logged::MAX_LOGGED_BYTES;
use self::plan::inspect::Inspector;
pub use self::plan::{Explained, LeftOut, Question};
use self::recall::RecallExchange;
use self::record::{Passed, Presence, Record};
use self::relay::addition::Addition;
use self::relay::attended::Attended;
pub use self::relay::drain::Drains;
use self::runtime::Runtime;
pub use self::runtime::instance_secret;
use self::send::attempt::Attempt;
use self::send::chat::Chat;
use self::send::models;
use self::send::passthrough::{self, PassRequest, Passthrough};
use self::settings::Settings;
pub use self::settle::originals::Originals;
pub use self::settle::receipts::Receipts;
use self::settle::recent::{Origin, RecentConversations};
use self::settle::spend;
pub use self::settle::spend::SpendQuery;
use self::summaries::{Sent, Summaries};
use self::upstreams::Upstream;
pub use self::upstreams::{learned, learned_store};
use crate::config::{Config, Routes};
use crate::upstream::{Base, Client, Endpoint, Inbound, Target};
pub use crate::upstream::{Body, BoxError};
pub use weir_store::Tenant;
use weir_store::{SECRET_BYTES, Store};

/// Handles requests from plan to answer.
#[derive(Clone)]
pub struct Proxy {
    settings: Arc<Settings>,
    runtime: Arc<Runtime>,
}

impl Proxy {
    /// Creates a proxy that sends through `client`, or to the other upstreams of `config`, and
    /// keeps persistent data in `store`. Fails if memory for its caches is not available.
    pub fn new(config: Arc<Config>, client: Client, store: Store) -> Result<Self, SetupError> {
        let runtime = Arc::new(Runtime::new(&config, store)?);
        let settings = Settings::new(config, Some(client), &runtime, None)?;
        let proxy = Self { settings: Arc::new(settings), runtime };
        proxy.take_effect();
        Ok(proxy)
    }

    /// Returns the proxy under another configuration, for new requests: new settings, the same
    /// runtime. That stays as it is until [`Self::take_effect`].
    pub fn reconfigured(&self, config: Arc<Config>) -> Result<Self, SetupError> {
        let settings = Settings::new(config, None, &self.runtime, Some(&self.settings))?;
        Ok(Self { settings: Arc::new(settings), runtime: Arc::clone(&self.runtime) })
    }

    /// Applies this proxy's configuration to the runtime.
    pub fn take_effect(&self) {
        self.runtime.recent.turn(self.settings.config.shows_conversations());
    }

    /// Compacts the conversation to its limit, forwards it and relays the answer.
    ///
    /// The request, its body and its permit are released when the answer begins.
    pub async fn handle(&self, request: ChatRequest) -> Result<Response<Body>, ProxyError> {
        let (own, presence) = (self.clone(), Arc::new(Presence::default()));
        let attended = Arc::clone(&presence);
        let handling = Box::pin(async move { own.handled(request, attended).await });
        Attended::new(handling, presence, &self.runtime.drains).await
    }

    async fn handled(
        &self,
        mut request: ChatRequest,
        presence: Arc<Presence>,
    ) -> Result<Response<Body>, ProxyError> {
        let settings = &self.settings;
        let admission = std::mem::replace(&mut request.admission, Admission::unlimited());
        let mut record = self.begin(&request.method, &request.target, &request.caller, admission);
        record.attended(presence);
        self.trace(&mut record, &request.headers);
        record.attributed(attribution::from_headers(&request.headers));
        // Admit: caller and rates are known, the options are read.
        let admitted = async {
            self.refuse_loop(&request.headers)?;
            compaction::read(settings, &mut request).await?;
            compaction::manage(settings, &mut request).await
        };
        let admitted = admitted.await;
        if request.asked.compaction == Some(AskedCompaction::Whole) {
            // Rare, and larger than all else here.
            return Box::pin(self.shorten(request, admitted, record)).await;
        }
        let sent = async {
            admitted?;
            profile::add(settings, &mut request).await?;
            let conversation = conversations::open(settings, self.store(), &mut request).await?;
            recall::add(settings, &self.runtime.recalls, &mut request).await?;
            // Plan for the model of its route.
            let mut chat = Chat::plan(settings, request, &mut record).await?;
            // Hold the cost and send, as often as there is a cause to send it again.
            let inbound = send::send(&mut chat, &mut record).await?;
            let (request, mut current) = chat.into_parts();
            record.edited(&current.planned);
            let (additions, recall) = match inbound.is_accepted() {
                true => self.accepted(request, &mut current, &mut record),
                false => (Vec::new(), None),
            };
            // Answer the model's recalls; those of a stream while it is relayed.
            let answered = recall::whole(recall, settings, inbound, &mut record).await?;
            Ok((answered, additions, current, conversation))
        };
        let (answered, additions, current, conversation) = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error).await),
        };
        let (mut inbound, rounds, recall) = answered;
        let Attempt { upstream, planned, .. } = current;
        inbound.headers = upstream.inbound(inbound.headers);
        headers::recalls(&mut inbound.headers, rounds);
        headers::report(&mut inbound.headers, &planned);
        let (opened, exchange) = conversation.unzip();
        headers::conversation(&mut inbound.headers, opened);
        self.name(&mut inbound, &record, &upstream, &planned.model);
        // Relay; the record settles at the end of the answer.
        let exchange = exchange.flatten().filter(|_| inbound.is_accepted());
        let keeping = exchange.map(|exchange| exchange.answered(&inbound.headers));
        let drains = &self.runtime.drains;
        let response = match recall {
            Some(recall) => {
                recall::relay(inbound, record, (recall, Arc::clone(settings)), keeping, drains)
            }
            None => relay::relay(inbound, record, drains, keeping),
        };
        let response = match planned.usage_request {
            Some(_) => relay::strip_usage::without_usage(response),
            None => response,
        };
        Ok(additions.into_iter().fold(response, relay::addition::with))
    }

    /// Answers a request for a shorter conversation, or forwards it to an upstream that answers such
    /// requests.
    pub async fn compact(&self, mut request: ChatRequest) -> Result<Response<Body>, ProxyError> {
        let settings = &self.settings;
        let read = compaction::read(settings, &mut request).await;
        let is_sent = request.options.bypass || compaction::upstream(settings, &request).compacts;
        if read.is_ok() && is_sent {
            return self.pass(request.into()).await;
        }
        let admission = std::mem::replace(&mut request.admission, Admission::unlimited());
        let mut record = self.begin(&request.method, &request.target, &request.caller, admission);
        self.trace(&mut record, &request.headers);
        let admitted = self.refuse_loop(&request.headers).and(read);
        self.shorten(request, admitted, record).await
    }

    /// Answers a request that was admitted with its own conversation, shortened.
    async fn shorten(
        &self,
        request: ChatRequest,
        admitted: Result<(), ProxyError>,
        mut record: Record,
    ) -> Result<Response<Body>, ProxyError> {
        let answered = async {
            admitted?;
            compaction::answer::compacted(&self.settings, &request, &mut record).await
        };
        let OwnAnswer { body, content_type, mut planned, asked } = match answered.await {
            Ok(answered) => answered,
            Err(error) => return Err(record.failed(error).await),
        };
        let left_out = std::mem::take(&mut planned.left_out);
        self.runtime.originals.keep(request.caller.tenant, asked, left_out, request.permit);
        let (id, left) = (record.id(), record.minute_left());
        let mut response = relay::own(body, content_type, record).await;
        let headers = response.headers_mut();
        headers::report(headers, &planned);
        headers::name(headers, id);
        headers::rates(headers, &left);
        Ok(response)
    }

    /// Shows what a compaction item stands for to the caller that it was made for.
    pub fn show_compaction(&self, caller: &Caller, item: &[u8]) -> Result<String, ProxyError> {
        compaction::answer::shown(&self.settings, caller.tenant, item)
    }

    /// Streams a request to the upstream, and its answer back.
    pub async fn pass(&self, pass: Pass) -> Result<Response<Body>, ProxyError> {
        if pass.method == Method::GET && *pass.target.endpoint() == Endpoint::Models {
            return Box::pin(self.models(pass)).await;
        }
        let (own, presence) = (self.clone(), Arc::new(Presence::default()));
        let attended = Arc::clone(&presence);
        let handling = Box::pin(async move { own.passed(pass, attended).await });
        Attended::new(handling, presence, &self.runtime.drains).await
    }

    async fn passed(
        &self,
        pass: Pass,
        presence: Arc<Presence>,
    ) -> Result<Response<Body>, ProxyError> {
        let (settings, endpoint) = (&self.settings, pass.target.endpoint().clone());
        let is_get = pass.method == Method::GET;
        let is_unread = passthrough::is_unread(&pass.method, &pass.target);
        let mut record = self.begin(&pass.method, &pass.target, &pass.caller, pass.admission);
        record.attended(presence);
        self.trace(&mut record, &pass.headers);
        record.attributed(attribution::from_headers(&pass.headers));
        let sent = async {
            self.refuse_loop(&pass.headers)?;
            // Tokens are unknown yet, but earlier use must leave some room.
            record.take_tokens(0).await?;
            let has_own_models = pass.caller.has_own_models();
            let request =
                PassRequest::new(pass.method, pass.headers, pass.target, pass.body, has_own_models);
            let request = request.await?;
            let action = is_unread.then_some(plan::UNREAD);
            record.passed(Passed { model: Arc::clone(&request.named), action });
            let mut passthrough = Passthrough::prepare(settings, request, pass.caller.tenant)?;
            let inbound = send::send(&mut passthrough, &mut record).await?;
            Ok((inbound, passthrough.into_current()))
        };
        let (mut inbound, attempt) = match sent.await {
            Ok(sent) => sent,
            Err(error) => return Err(record.failed(error).await),
        };
        if let Endpoint::Model(name) = &endpoint
            && is_get
        {
            inbound = models::one(settings, name, record.caller(), inbound).await;
        }
        inbound.headers = attempt.upstream.inbound(inbound.headers);
        if is_unread {
            headers::unread(&mut inbound.headers);
            if inbound.status.is_success() {
                attempt.warn_unread(settings, &self.runtime.unread, record.passed_model());
            }
        }
        self.name(&mut inbound, &record, &attempt.upstream, &attempt.model);
        Ok(relay::relay(inbound, record, &self.runtime.drains, None))
    }

    /// Returns the merged lists of models of all upstreams.
    async fn models(&self, pass: Pass) -> Result<Response<Body>, ProxyError> {
        let Pass { caller, admission, target, method, headers, .. } = pass;
        let mut record = self.begin(&method, &target, &caller, admission);
        self.trace(&mut record, &headers);
        let sent = async {
            self.refuse_loop(&headers)?;
            // Tokens are unknown yet, but earlier use must leave some room.
            record.take_tokens(0).await?;
            record.ready();
            models::list(&self.settings, &caller, (method, target, headers)).await
        };
        let mut inbound = match sent.await {
            Ok(inbound) => inbound,
            Err(error) => return Err(record.failed(error).await),
        };
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        Ok(relay::relay(inbound, record, &self.runtime.drains, None))
    }

    /// Explains the plan that [`Self::handle`] would carry out first. Sends nothing.
    pub async fn explain(&self, mut request: ChatRequest) -> Result<Explained, ProxyError> {
        let settings = &self.settings;
        compaction::read(settings, &mut request).await?;
        compaction::manage(settings, &mut request).await?;
        profile::add(settings, &mut request).await?;
        conversations::open(settings, self.store(), &mut request).await?;
        recall::add(settings, &self.runtime.recalls, &mut request).await?;
        let (_, _, job) = request.job(settings, request.model.name.as_deref())?;
        settings.planner.explain_job(job, None).await
    }

    /// Returns an inspector of recorded conversations under the configuration in force.
    pub fn inspector(&self) -> Inspector {
        Inspector::new(&self.settings.config, Arc::clone(&self.runtime.inspections))
    }

    fn begin(
        &self,
        method: &Method,
        target: &Target,
        caller: &Caller,
        admission: Admission,
    ) -> Record {
        let entry = self.runtime.live.begin(target.endpoint().label(), caller);
        let metrics = self.settings.journal.metrics();
        Record::begin(method, target, (caller.clone(), admission), metrics, entry)
    }

    /// Starts the trace of a request with these headers, if it is to have one.
    fn trace(&self, record: &mut Record, headers: &HeaderMap) {
        record.traced(|begun| self.runtime.tracer.begin(headers, begun));
    }

    /// Adds the headers that name the request, the minute's rest and the route to an answer.
    fn name(&self, inbound: &mut Inbound, record: &Record, upstream: &Upstream, model: &str) {
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        let shown = self.settings.shown_name(upstream).map(|name| (&**name, model));
        headers::route(&mut inbound.headers, shown, record.attempts());
    }

    /// Takes note of a request that the upstream has accepted, which distinguishes a credential from
    /// noise. Returns the addition to its answer, and the exchange that recalls may continue.
    fn accepted(
        &self,
        mut request: ChatRequest,
        current: &mut Attempt,
        record: &mut Record,
    ) -> (Vec<Addition>, Option<RecallExchange>) {
        record.taken(&current.planned);
        self.prefetch(current);
        let tenant = request.caller.tenant;
        if self.settings.config.shows_conversations() {
            let (job, planned) = (&current.job, &current.planned);
            let origin = Origin {
                caller: record.caller(),
                attribution: &record.attribution(),
                model: &planned.model,
                protocol: job.protocol,
                policy: &self.settings.planner.policy_name(job, &planned.model),
                limit_tokens: planned.limit_tokens,
            };
            self.runtime.recent.keep(&origin, &job.body);
        }
        // If its answer may be continued, the body is needed as long.
        let permit: Box<dyn Send> = match current.job.without_recall {
            Some(_) => Box::new(()),
            None => Box::new(std::mem::replace(&mut request.permit, Box::new(()))),
        };
        self.runtime.keep(&self.settings.config, (tenant, record.id()), current, permit);
        let additions = Addition::of(&self.settings, tenant, current);
        (additions, RecallExchange::new(Arc::clone(&self.runtime), request, current.clone()))
    }

    /// Prefetches the summary for the next compaction in the background.
    fn prefetch(&self, current: &mut Attempt) {
        let Attempt { job, planned, .. } = current;
        let Some((summaries, requester)) = self.summaries().zip(job.requester.as_ref()) else {
            return;
        };
        summaries.note_taken(&requester.caller);
        let Some(wanted) = planned.prefetch.take() else { return };
        let body = planned.body.as_ref().unwrap_or(&job.body).clone();
        let sent = Sent { body, tokens: planned.sent_tokens };
        summaries.prefetch(wanted, &job.body, requester, Some(sent));
    }

    /// Refuses a request that has already passed through this instance.
    fn refuse_loop(&self, headers: &HeaderMap) -> Result<(), ProxyError> {
        if !self.settings.via.is_in(headers) {
            return Ok(());
        }
        Err(ProxyError::new(
            ErrorKind::LoopDetected,
            "this request has returned to the weir that sent it: its upstream leads back to \
             weir itself. Set its url (upstream.url, upstreams.NAME.url, or OPENAI_BASE_URL for weir \
             alone) to the provider",
        ))
    }

    /// Admits a request within the limits of the caller's key.
    pub async fn admit(&self, caller: &Caller) -> Result<Admission, ProxyError> {
        self.runtime.admissions.admit(caller).await
    }

    /// Counts a request that was refused before it reached the proxy.
    pub fn count_refused(&self, path: &str, problem: &ProxyError) {
        let target = Target::map(self.base(), path);
        let route = target.as_ref().map_or("other", |target| target.endpoint().label());
        self.journal().metrics().refused(route, problem.kind);
    }

    /// Whether the body of a request must be read to determine its route, its model or its cost.
    pub async fn needs_body(&self, method: &Method, target: &Target, headers: &HeaderMap) -> bool {
        if passthrough::may_name_a_model(method, target, headers) {
            return self.journal().budgets().may_apply().await;
        }
        passthrough::names_a_model(method, target, headers)
            && (matches!(target.endpoint(), Endpoint::Route(route) if route.may_lack_usage())
                || self.settings.planner.routes().are_several()
                || target.is_model_in_body
                || self.journal().budgets().may_apply().await)
    }

    /// Returns the usage of `caller`: its key, or its whole team; without keys, its credential.
    pub async fn spend(&self, caller: &Caller, query: SpendQuery) -> Result<Value, ProxyError> {
        spend::usage(self.store(), self.journal().budgets().zone(), caller, query).await
    }

    /// Returns the state of the budgets that apply to `caller`'s requests.
    pub async fn statuses(&self, caller: &Caller) -> Result<Value, ProxyError> {
        spend::statuses(self.journal().budgets(), caller).await
    }

    /// Renders all metrics in the OpenMetrics text format. Lists budgets by name: it is for
    /// operators.
    pub async fn metrics_page(&self) -> String {
        metrics::page::render(&self.settings, &self.runtime).await
    }

    /// Returns the sender of events for operators.
    pub fn events(&self) -> &Events {
        &self.runtime.events
    }

    /// Records whether a changed configuration was applied, or refused for problems with these keys.
    pub fn reloaded(&self, refused: Option<&[String]>) {
        self.journal().metrics().reloaded(refused.is_none());
        match refused {
            Some(keys) => self.runtime.events.send(&Event::ReloadRefused { keys }),
            None => self.runtime.events.reload_applied(),
        }
    }

    /// Waits, within bounds, until waiting events are posted and waiting traces exported.
    pub async fn flush(&self) {
        tokio::join!(self.runtime.events.finish(), self.runtime.tracer.finish());
    }

    /// Returns the secret of callers' fingerprints.
    pub fn secret(&self) -> [u8; SECRET_BYTES] {
        self.runtime.secret
    }

    /// Returns the store for persistent data.
    pub fn store(&self) -> &Store {
        &self.runtime.store
    }

    /// Returns the originals of messages that were not sent whole.
    pub fn originals(&self) -> &Arc<Originals> {
        &self.runtime.originals
    }

    /// Returns the receipts of compactions.
    pub fn receipts(&self) -> &Receipts {
        &self.runtime.receipts
    }

    /// Returns the kept conversations of a caller.
    pub fn conversations<'a>(&'a self, caller: &'a Caller) -> Result<Pages<'a>, ProxyError> {
        Pages::new(self.store(), self.settings.config.conversations, caller)
    }

    /// Returns the journal of requests.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.settings.journal
    }

    /// Returns the recent conversations that operators see; `None` if they see none.
    pub fn recent(&self) -> Option<&RecentConversations> {
        let is_shown = self.settings.config.shows_conversations();
        is_shown.then_some(&self.runtime.recent)
    }

    /// Returns the summaries; `None` if they are disabled.
    pub fn summaries(&self) -> Option<&Arc<Summaries>> {
        self.settings.summaries.as_ref()
    }

    /// Returns the answers that are read without their callers, to wait for at shutdown.
    pub fn drains(&self) -> &Drains {
        &self.runtime.drains
    }

    /// Returns the requests in flight and the newest ended ones. It is for operators.
    pub fn live(&self) -> &Live {
        &self.runtime.live
    }

    /// Returns the name of this instance in `via`.
    pub fn instance(&self) -> &str {
        self.runtime.via.name()
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &Config {
        &self.settings.config
    }

    /// Returns the upstreams, the default first.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.settings.upstreams.all()
    }

    /// Returns the routes of models.
    pub fn routes(&self) -> &Routes {
        &self.settings.config.routes
    }

    /// Returns the base onto which callers' paths are mapped.
    pub fn base(&self) -> &Base {
        self.settings.upstreams.default.client.base()
    }
}
