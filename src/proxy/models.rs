//! `GET /v1/models`: what the upstreams list, asked side by side and told as one list of what leads
//! somewhere, with how much each model takes by weir's reckoning; and `GET /v1/models/NAME`, one entry of
//! it. An answer that is no list or no entry passes as it is.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, RANGE, TRANSFER_ENCODING,
};
use http::{HeaderValue, Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::record::Record;
use super::routed::tried;
use super::upstreams::Upstream;
use super::{Body, Caller, ErrorKind, Pass, Proxy, ProxyError, headers, relay};
use crate::config::Known;
use crate::context::Limits;
use crate::upstream::{AnswerBody, Inbound, Outbound, OutboundBody};
use crate::wire::models::{self, Entry, Figures, List};

/// The longest list that is read.
const MAX_LIST_BYTES: usize = 2 << 20;
/// How long one upstream's list is waited for, where there are others.
const DEADLINE: Duration = Duration::from_secs(10);

/// What one upstream has answered.
struct Answered {
    upstream: Arc<Upstream>,
    answer: Result<Inbound, ProxyError>,
    /// The list that it is, if it is one.
    list: Option<Vec<u8>>,
}

impl Proxy {
    /// Answers which models there are.
    pub(super) async fn models(&self, pass: Pass) -> Result<Response<Body>, ProxyError> {
        let Pass { caller, admission, target, method, headers: callers, .. } = pass;
        let metrics = self.journal.metrics();
        let mut record = Record::begin(&method, &target, caller.clone(), admission, metrics);
        let sent = async {
            self.refuse_loop(&callers)?;
            // Nothing is known of the tokens: what was used before must leave some room.
            record.take_tokens(0).await?;
            record.ready();
            let is_single = !self.config.is_routed();
            let mut asking = JoinSet::new();
            for (number, upstream) in self.upstreams.all().enumerate() {
                if number > 0 && is_single {
                    break;
                }
                let asked = target.asked_model().unwrap_or_default();
                let target =
                    target.onto(upstream.client.base(), &asked, upstream.gets_callers_key)?;
                let mut headers = upstream.outbound(callers.clone(), &self.via, target.endpoint());
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
                if !is_single {
                    for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE, RANGE] {
                        headers.remove(name);
                    }
                }
                let (method, body) = (method.clone(), OutboundBody::Empty);
                let outbound = Outbound { method, target, headers, body };
                let upstream = Arc::clone(upstream);
                let deadline = (!is_single).then_some(DEADLINE);
                asking.spawn(async move { (number, ask(upstream, outbound, deadline).await) });
            }
            let mut answers = asking.join_all().await;
            answers.sort_by_key(|(number, _)| *number);
            let answers = answers.into_iter().map(|(_, answered)| answered).collect();
            self.told(answers, &caller)
        };
        let mut inbound = match sent.await {
            Ok(inbound) => inbound,
            Err(error) => return Err(record.failed(error).await),
        };
        headers::name(&mut inbound.headers, record.id());
        headers::rates(&mut inbound.headers, &record.minute_left());
        Ok(relay::relay(inbound, record, &self.drains))
    }

    /// One answer made of all; the default upstream's as it is where none is a list.
    fn told(&self, answers: Vec<Answered>, caller: &Caller) -> Result<Inbound, ProxyError> {
        let Some(first) = answers.iter().position(|answered| answered.list.is_some()) else {
            let mut answers = answers.into_iter();
            let default = answers.next().expect("the default upstream is asked");
            let mut inbound = default.answer?;
            if inbound.status.is_success() && caller.has_own_models() {
                let message = "The upstream's list of models could not be read, so that weir cannot \
                               tell which of them are open to this key.";
                return Err(ProxyError::new(ErrorKind::UpstreamClosed, message));
            }
            inbound.headers = default.upstream.inbound(inbound.headers);
            return Ok(inbound);
        };
        let lists = answers.iter().map(|answered| {
            let list = answered.list.as_deref().and_then(models::read);
            (answered.upstream.as_ref(), list)
        });
        let lists: Vec<_> = lists.collect();
        let text = self.merged(&lists, first, caller);
        let left_out: Vec<&str> = lists
            .iter()
            .filter_map(|(upstream, list)| list.is_none().then_some(&*upstream.name))
            .collect();
        let left_out = left_out.join(", ");
        let whole = answers.into_iter().nth(first).expect("it was found");
        let mut inbound = whole.answer?;
        inbound.headers = whole.upstream.inbound(inbound.headers);
        for name in [ETAG, LAST_MODIFIED] {
            inbound.headers.remove(name);
        }
        inbound.headers.insert(CONTENT_LENGTH, text.len().into());
        headers::left_out(&mut inbound.headers, &left_out);
        inbound.body = AnswerBody::whole(text);
        Ok(inbound)
    }

    /// The list of the upstream `first`, with what all others and the routes have besides.
    fn merged(
        &self,
        lists: &[(&Upstream, Option<List<'_>>)],
        first: usize,
        caller: &Caller,
    ) -> String {
        let ways = self.planner.ways();
        let mut seen = HashSet::new();
        let mut entry = |upstream: &Upstream, entry: &Entry<'_>| {
            let leads_there = ways.find(&entry.id).taught.name == upstream.name;
            let is_wanted =
                leads_there && caller.check_model(&entry.id, &self.config.routes).is_ok();
            let is_new = is_wanted && seen.insert(entry.id.clone().into_owned());
            is_new.then(|| models::told(entry.raw, &self.figures(&entry.id, caller)).into_owned())
        };
        let of_first: Vec<Option<String>> = match &lists[first] {
            (upstream, Some(list)) => list.entries.iter().map(|own| entry(upstream, own)).collect(),
            (_, None) => Vec::new(),
        };
        let others = lists
            .iter()
            .skip(first + 1)
            .filter_map(|(upstream, list)| list.as_ref().map(|list| (*upstream, list)));
        let mut more: Vec<String> = Vec::new();
        for (upstream, list) in others {
            more.extend(list.entries.iter().filter_map(|own| entry(upstream, own)));
        }
        for name in self.config.routes.rows.iter().flat_map(|row| row.exact()) {
            if caller.check_model(name, &self.config.routes).is_ok() && seen.insert(name.to_owned())
            {
                let figures = self.figures(name, caller);
                more.push(models::told(&models::entry(name), &figures).into_owned());
            }
        }
        let Some(list) = &lists[first].1 else { return String::new() };
        let mut of_first = of_first.into_iter();
        models::written(list, |_| of_first.next().flatten().map(Cow::Owned), &more)
    }

    /// The upstream's answer about the model called `name`, with what [`Self::models`] adds to its entry
    /// and, for a name that only a route has, the entry.
    pub(super) async fn one_model(
        &self,
        name: &str,
        caller: &Caller,
        mut inbound: Inbound,
    ) -> Inbound {
        let figures = self.figures(name, caller);
        let mut rows = self.config.routes.rows.iter();
        let text = if inbound.status.is_success() {
            let is_plain = !inbound.headers.contains_key(CONTENT_ENCODING);
            let seen = inbound.body.peek(MAX_LIST_BYTES).await;
            let text = models::told_body(seen, &figures);
            text.filter(|_| is_plain && inbound.body.is_seen_whole())
        } else {
            let is_routes = rows.any(|row| row.exact().any(|own| own == name));
            let is_unknown = inbound.status == StatusCode::NOT_FOUND;
            let entry = || models::told(&models::entry(name), &figures).into_owned();
            (is_unknown && is_routes).then(entry)
        };
        let Some(text) = text else { return inbound };
        if !inbound.status.is_success() {
            inbound.status = StatusCode::OK;
            inbound.headers.remove(CONTENT_ENCODING);
            inbound.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for name in [ETAG, LAST_MODIFIED, TRANSFER_ENCODING] {
            inbound.headers.remove(name);
        }
        inbound.headers.insert(CONTENT_LENGTH, text.len().into());
        inbound.body = AnswerBody::whole(text);
        inbound
    }

    /// How much the model that `asked` leads to takes for this caller, where that is more than a guess.
    fn figures(&self, asked: &str, caller: &Caller) -> Figures {
        let way = self.planner.ways().find(asked);
        let model = way.sent(asked);
        let found = self.config.models.find(model);
        let is_known = !matches!(found.known, Known::Unknown);
        let mut limits = Limits {
            window_tokens: found.entry.window_tokens,
            max_input_tokens: found.entry.max_input_tokens,
            max_output_tokens: found.entry.max_output_tokens,
            operator_tokens: None,
            header_tokens: None,
            asked_output_tokens: None,
            counting: self.config.policy(None, None).counting,
        };
        let learned = way.taught.learned.limits(caller.tenant, model, limits.configured());
        learned.apply(&mut limits, is_known);
        let by_name = [asked, model].map(|name| self.config.configured_limit_tokens(name));
        let lower = by_name.into_iter().flatten().chain(way.max_input_tokens()).min();
        let is_learned = learned.window_tokens.is_some() || learned.max_input_tokens.is_some();
        if !is_known && !is_learned && lower.is_none() {
            return Figures::default();
        }
        let window_tokens =
            lower.map_or(limits.window_tokens, |lower| lower.min(limits.window_tokens));
        Figures {
            window_tokens: Some(window_tokens),
            max_output_tokens: limits.max_output_tokens.filter(|_| is_known),
        }
    }
}

/// One upstream's answer, read as a list where it is one.
async fn ask(upstream: Arc<Upstream>, outbound: Outbound, deadline: Option<Duration>) -> Answered {
    let read = async {
        let target = outbound.target.clone();
        let inbound = upstream.client.send(outbound).await;
        let inbound = inbound.map_err(|error| upstream.error(error))?;
        let mut inbound = upstream.well_placed(&target, inbound).await?;
        let is_plain = !inbound.headers.contains_key(CONTENT_ENCODING);
        if !inbound.status.is_success() || !is_plain {
            return Ok((inbound, None));
        }
        let seen = inbound.body.peek(MAX_LIST_BYTES).await;
        let list =
            (seen.len() <= MAX_LIST_BYTES && models::read(seen).is_some()).then(|| seen.to_vec());
        let list = list.filter(|_| inbound.body.is_seen_whole());
        Ok((inbound, list))
    };
    let read = match deadline {
        None => read.await,
        Some(deadline) => timeout(deadline, read).await.unwrap_or_else(|_| {
            let timeout_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
            Err(crate::upstream::SendError::FirstByteTimeout { timeout_ms }.into())
        }),
    };
    let (answer, list) = match read {
        Ok((inbound, list)) => (Ok(inbound), list),
        Err(error) => (Err(error), None),
    };
    if let Some(tried) = tried(&answer) {
        upstream.note(tried);
    }
    Answered { upstream, answer, list }
}
