//! `GET /v1/models`: merges the lists of all upstreams, requested in parallel, and adds the limits
//! that weir knows of each model. `GET /v1/models/NAME`: one entry. An answer in another form is
//! passed on unchanged.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, RANGE, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::tried;
use crate::config::Known;
use crate::proxy::admit::caller::Caller;
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::headers;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::Upstream;
use crate::upstream::{AnswerBody, Inbound, Outbound, OutboundBody, Target};
use weir_engine::compact::Limits;
use weir_engine::wire::models::{self, Entry, Figures, ModelList};

/// Maximum size of a list that is read.
const MAX_LIST_BYTES: usize = 2 << 20;
/// Timeout for one upstream's list, if there are others.
const DEADLINE: Duration = Duration::from_secs(10);

/// Answer of one upstream.
struct Answered {
    upstream: Arc<Upstream>,
    answer: Result<Inbound, ProxyError>,
    /// Its list, if it is one.
    list: Option<Vec<u8>>,
}

/// Requests the lists of all upstreams, and merges them for `caller`.
pub async fn list(
    settings: &Settings,
    caller: &Caller,
    (method, target, callers): (Method, Target, HeaderMap),
) -> Result<Inbound, ProxyError> {
    let is_single = !settings.config.is_routed();
    let mut lists = JoinSet::new();
    for (number, upstream) in settings.upstreams.all().enumerate() {
        if number > 0 && is_single {
            break;
        }
        let asked = target.asked_model().unwrap_or_default();
        let target = target.onto(upstream.client.base(), &asked, upstream.gets_callers_key)?;
        let mut headers = upstream.outbound(callers.clone(), &settings.via, target.endpoint());
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
        let has_key = caller.key.is_some();
        lists.spawn(async move { (number, ask(upstream, outbound, deadline, has_key).await) });
    }
    let mut answers = lists.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    let answers = answers.into_iter().map(|(_, answered)| answered).collect();
    combine(settings, answers, caller)
}

/// Merges all answers; the default upstream's unchanged if none is a list.
fn combine(
    settings: &Settings,
    answers: Vec<Answered>,
    caller: &Caller,
) -> Result<Inbound, ProxyError> {
    let Some(first) = answers.iter().position(|answered| answered.list.is_some()) else {
        let mut answers = answers.into_iter();
        let default = answers.next().expect("the default upstream is asked");
        let mut inbound = default.answer?;
        if inbound.status.is_success() && caller.has_own_models() {
            let message = "The upstream's list of models could not be read, so weir cannot \
                           determine which of them this key may use.";
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
    let text = merged(settings, &lists, first, caller);
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

/// Merges the list of the upstream `first` with the additional models of all others and of the
/// routes.
fn merged(
    settings: &Settings,
    lists: &[(&Upstream, Option<ModelList<'_>>)],
    first: usize,
    caller: &Caller,
) -> String {
    let routes = settings.planner.routes();
    let mut seen = HashSet::new();
    let mut entry = |upstream: &Upstream, entry: &Entry<'_>| {
        let leads_there = routes.find(&entry.id).knowledge.name == upstream.name;
        let is_wanted =
            leads_there && caller.check_model(&entry.id, &settings.config.routes).is_ok();
        let is_new = is_wanted && seen.insert(entry.id.clone().into_owned());
        is_new.then(|| {
            learn_window(settings, entry, caller);
            models::completed(entry.raw, &figures(settings, &entry.id, caller)).into_owned()
        })
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
    for name in settings.config.routes.rows.iter().flat_map(|row| row.exact()) {
        if caller.check_model(name, &settings.config.routes).is_ok() && seen.insert(name.to_owned())
        {
            let figures = figures(settings, name, caller);
            more.push(models::completed(&models::entry(name), &figures).into_owned());
        }
    }
    let Some(list) = &lists[first].1 else { return String::new() };
    let mut of_first = of_first.into_iter();
    models::written(list, |_| of_first.next().flatten().map(Cow::Owned), &more)
}

/// Returns the upstream's answer about the model called `name`, with the additions of
/// the list of models; for a name that only a route has, its entry.
pub async fn one(
    settings: &Settings,
    name: &str,
    caller: &Caller,
    mut inbound: Inbound,
) -> Inbound {
    let figures = figures(settings, name, caller);
    let mut rows = settings.config.routes.rows.iter();
    let text = if inbound.status.is_success() {
        let is_plain = !inbound.headers.contains_key(CONTENT_ENCODING);
        let seen = inbound.body.peek(MAX_LIST_BYTES).await;
        let text = models::completed_body(seen, &figures);
        text.filter(|_| is_plain && inbound.body.is_seen_whole())
    } else {
        let is_routes = rows.any(|row| row.exact().any(|own| own == name));
        let is_unknown = inbound.status == StatusCode::NOT_FOUND;
        let entry = || models::completed(&models::entry(name), &figures).into_owned();
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

/// Learns the window that a server states for a model that nobody configured.
fn learn_window(settings: &Settings, entry: &Entry<'_>, caller: &Caller) {
    let route = settings.planner.routes().find(&entry.id);
    let model = route.sent(&entry.id);
    let is_known = !matches!(settings.config.models.find(model).known, Known::Unknown);
    let Some(window_tokens) = models::stated_window_tokens(entry.raw).filter(|_| !is_known) else {
        return;
    };
    let configured = settings.configured(model);
    route.knowledge.learned.keep_stated(caller.tenant, model, window_tokens, configured);
}

/// Returns the limits of the model behind `asked` for this caller, if they are more than a
/// guess.
fn figures(settings: &Settings, asked: &str, caller: &Caller) -> Figures {
    let route = settings.planner.routes().find(asked);
    let model = route.sent(asked);
    let found = settings.config.models.find(model);
    let is_known = !matches!(found.known, Known::Unknown);
    let mut limits = Limits {
        window_tokens: found.entry.window_tokens,
        max_input_tokens: found.entry.max_input_tokens,
        max_output_tokens: found.entry.max_output_tokens,
        operator_tokens: None,
        header_tokens: None,
        asked_output_tokens: None,
        counting: settings.config.policy(None, None).counting,
    };
    let learned = route.knowledge.learned.limits(caller.tenant, model, limits.configured());
    learned.apply(&mut limits, is_known);
    let by_name = [asked, model].map(|name| settings.config.configured_limit_tokens(name));
    let lower = by_name.into_iter().flatten().chain(route.row.max_input_tokens).min();
    let is_learned = learned.window_tokens.is_some() || learned.max_input_tokens.is_some();
    if !is_known && !is_learned && lower.is_none() {
        return Figures::default();
    }
    let window_tokens = lower.map_or(limits.window_tokens, |lower| lower.min(limits.window_tokens));
    Figures {
        window_tokens: Some(window_tokens),
        max_output_tokens: limits.max_output_tokens.filter(|_| is_known),
    }
}

/// Requests one upstream's list.
async fn ask(
    upstream: Arc<Upstream>,
    outbound: Outbound,
    deadline: Option<Duration>,
    has_virtual_key: bool,
) -> Answered {
    let read = async {
        let target = outbound.target.clone();
        let inbound = upstream.client.send(outbound).await;
        let inbound = inbound.map_err(|error| upstream.error(error))?;
        let mut inbound = upstream.well_placed(&target, inbound, has_virtual_key).await?;
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
