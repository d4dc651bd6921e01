//! Headers of weir's own: options in requests, reports in answers.

use http::header::{CONTENT_LENGTH, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::plan::{Planned, UNREAD};
use crate::config::Context;
use crate::proxy::admit::caller::Caller;
use crate::proxy::admit::class::RequestClass;
use crate::proxy::admit::request::RequestOptions;
use crate::proxy::error::{ErrorKind, ProxyError};
use weir_engine::compact::Verbosity;
use weir_store::ledger::{RequestId, signed_usd};
use weir_store::rates::MinuteLeft;

/// Lowers this request's limit on prompt tokens.
const MAX_INPUT_TOKENS: &str = "x-weir-max-input-tokens";
/// Forwards this request untouched.
const BYPASS: &str = "x-weir-bypass";

/// Names the policy for this request.
const POLICY: &str = "x-weir-policy";

/// Names the kept conversation that a request belongs to, and reports its state in the answer.
pub(super) const CONVERSATION: HeaderName = HeaderName::from_static("x-weir-conversation");

const ACTION: HeaderName = HeaderName::from_static("x-weir-action");
const EDITS: HeaderName = HeaderName::from_static("x-weir-edits");
const SUMMARY: HeaderName = HeaderName::from_static("x-weir-summary");
const RECEIVED_TOKENS: HeaderName = HeaderName::from_static("x-weir-received-tokens");
const SENT_TOKENS: HeaderName = HeaderName::from_static("x-weir-sent-tokens");
const PLANNED_TOKENS: HeaderName = HeaderName::from_static("x-weir-planned-tokens");
const PLANNED_SAVED_USD: HeaderName = HeaderName::from_static("x-weir-planned-saved-usd");
const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-weir-limit-tokens");
const BUDGET_HELD_USD: HeaderName = HeaderName::from_static("x-weir-budget-held-usd");
const BUDGET_LEFT_USD: HeaderName = HeaderName::from_static("x-weir-budget-left-usd");
const BUDGET_LEFT_TOKENS: HeaderName = HeaderName::from_static("x-weir-budget-left-tokens");
const BUDGET_WARNING: HeaderName = HeaderName::from_static("x-weir-budget-warning");
const REMAINING_TOKENS: HeaderName = HeaderName::from_static("x-weir-remaining-tokens");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-weir-request-id");
const LEFT_OUT: HeaderName = HeaderName::from_static("x-weir-left-out");
const UPSTREAM: HeaderName = HeaderName::from_static("x-weir-upstream");
const MODEL: HeaderName = HeaderName::from_static("x-weir-model");
const ATTEMPTS: HeaderName = HeaderName::from_static("x-weir-attempts");
const RECALLS: HeaderName = HeaderName::from_static("x-weir-recalls");
const VERBOSITY: HeaderName = HeaderName::from_static("x-weir-verbosity");

/// OpenAI's headers for the state of a minute: the limit, the remainder, the time until reset.
const RATE_REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const RATE_TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// State of a request's conversation, for the answer's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenedConversation {
    /// So many kept messages stand before those of the request.
    Messages(usize),
    /// The store could not be read: the request was sent alone, and nothing is kept.
    Unavailable,
}

/// Reads the caller's options for the plan, from headers or else from its key.
pub(super) fn options(
    headers: &HeaderMap,
    context: &Context,
    caller: &Caller,
) -> Result<RequestOptions, ProxyError> {
    let max_input_tokens = match only_value(headers, MAX_INPUT_TOKENS)? {
        None => None,
        Some(value) => match value.parse::<u64>() {
            // The parser would accept a sign.
            Ok(tokens) if tokens > 0 && !value.starts_with('+') => Some(tokens),
            _ => {
                let wanted = format!("a whole number from 1 to {}", u64::MAX);
                return Err(bad_value(MAX_INPUT_TOKENS, value, &wanted));
            }
        },
    };
    let bypass = match only_value(headers, BYPASS)? {
        None | Some("0" | "false") => false,
        Some("1" | "true") => true,
        Some(other) => return Err(bad_value(BYPASS, other, "1 or 0")),
    };
    if bypass && !context.allow_bypass {
        return Err(ProxyError::new(
            ErrorKind::BypassNotAllowed,
            format!(
                "{BYPASS} is not allowed here; the operator allows it with context.allow_bypass = true"
            ),
        ));
    }
    let by_key = caller.policy().filter(|name| context.policies.has(name));
    let policy = match only_value(headers, POLICY)? {
        None => by_key.map(str::to_owned),
        Some(chosen) => {
            let (allowed, place) = match caller.allowed_policies() {
                Some(allowed) => (allowed, "this key's policies"),
                None => (context.allowed_policies.as_slice(), "context.allowed_policies"),
            };
            // A key may be older than the configuration, which may have lost a policy since.
            let is_gone = caller.allowed_policies().is_some() && !context.policies.has(chosen);
            if is_gone || !allowed.iter().any(|name| name == chosen) {
                let allowed = match allowed {
                    [] => format!("none is allowed here ({place})"),
                    names => names.join(", "),
                };
                let wanted = format!("one of the policies allowed here: {allowed}");
                return Err(bad_value(POLICY, chosen, &wanted));
            }
            Some(chosen.to_owned())
        }
    };
    let class = RequestClass::from_headers(headers);
    let max_repeats = caller.max_repeats().filter(|_| !bypass);
    let read = RequestOptions {
        max_input_tokens,
        bypass,
        max_repeats,
        policy,
        class,
        ..RequestOptions::default()
    };
    Ok(read)
}

/// Returns the name of the kept conversation that a request belongs to, if it names one.
pub(super) fn conversation_name(headers: &HeaderMap) -> Result<Option<&str>, ProxyError> {
    only_value(headers, CONVERSATION.as_str())
}

/// Reports the state of a request's conversation.
pub(super) fn conversation(headers: &mut HeaderMap, opened: Option<OpenedConversation>) {
    headers.remove(CONVERSATION);
    match opened {
        None => {}
        Some(OpenedConversation::Messages(count)) => {
            insert_text(headers, CONVERSATION, &format!("messages={count}"));
        }
        Some(OpenedConversation::Unavailable) => insert_text(headers, CONVERSATION, "unavailable"),
    }
}

fn only_value<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ProxyError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(value) if values.next().is_none() => Ok(Some(value.trim())),
        Ok(_) => Err(invalid_header(name, format!("the header {name} is given twice"))),
        Err(_) => Err(invalid_header(name, format!("the header {name} must be plain ASCII"))),
    }
}

/// Maximum part of a header's value that an error quotes.
const MAX_SHOWN_CHARACTERS: usize = 40;

fn bad_value(name: &str, value: &str, wanted: &str) -> ProxyError {
    let shown: String = value.chars().take(MAX_SHOWN_CHARACTERS).collect();
    invalid_header(name, format!("the header {name} is {shown:?}, but must be {wanted}"))
}

fn invalid_header(name: &str, message: String) -> ProxyError {
    ProxyError::new(ErrorKind::InvalidRequest, message).about(name)
}

/// Adds the request's ID in the journal.
pub(super) fn name(headers: &mut HeaderMap, id: Option<RequestId>) {
    headers.remove(REQUEST_ID);
    if let Some(id) = id {
        insert_text(headers, REQUEST_ID, &id.to_string());
    }
}

/// Adds the report on the conversation. Replaces the report of another weir behind this one.
pub(super) fn report(headers: &mut HeaderMap, planned: &Planned) {
    headers.remove(EDITS);
    if !planned.edits.is_empty() {
        insert_text(headers, EDITS, &planned.edits);
    }
    headers.remove(SUMMARY);
    if let Some(look) = planned.summary {
        insert_text(headers, SUMMARY, look.word());
    }
    insert_text(headers, ACTION, &planned.action);
    headers.insert(RECEIVED_TOKENS, planned.received_tokens.into());
    headers.insert(SENT_TOKENS, planned.sent_tokens.into());
    headers.insert(LIMIT_TOKENS, planned.limit_tokens.into());
    let remaining_tokens = planned.limit_tokens.saturating_sub(planned.sent_tokens);
    headers.insert(REMAINING_TOKENS, remaining_tokens.into());
    let verbosity = Verbosity::of(planned.sent_tokens, planned.limit_tokens);
    insert_text(headers, VERBOSITY, verbosity.word());
    let budget = planned.budget.as_ref();
    let texts = [
        (BUDGET_HELD_USD, budget.and_then(|report| report.held_usd.clone())),
        (BUDGET_LEFT_USD, budget.and_then(|report| report.left_usd.clone())),
        (
            BUDGET_LEFT_TOKENS,
            budget.and_then(|report| report.left_tokens).map(|left| left.to_string()),
        ),
        (BUDGET_WARNING, budget.and_then(|report| report.warning.clone())),
        (PLANNED_TOKENS, planned.planned_tokens().map(|tokens| tokens.to_string())),
        (PLANNED_SAVED_USD, planned.planned_saved_nano_usd.map(signed_usd)),
    ];
    for (name, text) in texts {
        headers.remove(&name);
        if let Some(text) = text {
            insert_text(headers, name, &text);
        }
    }
}

/// Reports that weir has not read a conversation, so that none of its limits applies.
pub(super) fn unread(headers: &mut HeaderMap) {
    headers.insert(ACTION, HeaderValue::from_static(UNREAD));
}

/// Reports the upstream and model of a request if there are several routes, and the number of
/// attempts if there was more than one.
pub(super) fn route(headers: &mut HeaderMap, shown: Option<(&str, &str)>, attempts: u64) {
    for name in [UPSTREAM, MODEL, ATTEMPTS] {
        headers.remove(name);
    }
    if let Some((upstream, model)) = shown {
        insert_text(headers, UPSTREAM, upstream);
        // A name that no header can carry is left out.
        if !model.is_empty() {
            insert_text(headers, MODEL, model);
        }
    }
    if attempts > 1 {
        headers.insert(ATTEMPTS, attempts.into());
    }
}

/// Reports the rounds of the recall tool whose usage is part of the answer's.
pub(super) fn recalls(headers: &mut HeaderMap, rounds: usize) {
    headers.remove(RECALLS);
    if rounds > 0 {
        headers.insert(RECALLS, rounds.into());
    }
}

/// Names the upstreams whose models are missing in a list.
pub(super) fn left_out(headers: &mut HeaderMap, names: &str) {
    headers.remove(LEFT_OUT);
    if !names.is_empty() {
        insert_text(headers, LEFT_OUT, names);
    }
}

/// Returns the declared length of a body; 0 if none is declared.
pub(super) fn length(headers: &HeaderMap) -> u64 {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    declared.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Reports the remaining limits of a key's minute in OpenAI's headers, instead of the upstream's
/// figures for its account.
pub(super) fn rates(headers: &mut HeaderMap, left: &MinuteLeft) {
    let kinds = [(left.requests, &RATE_REQUESTS), (left.tokens, &RATE_TOKENS)];
    for (left, [limit, remaining, reset]) in kinds {
        let Some(left) = left else { continue };
        headers.insert(limit.clone(), left.per_minute.into());
        headers.insert(remaining.clone(), left.remaining.into());
        insert_text(headers, reset.clone(), &span(left.reset_ms));
    }
}

/// Formats a duration for OpenAI's headers: `6m0s`, `1.5s`, `120ms`.
fn span(ms: u64) -> String {
    match (ms / 60_000, ms % 60_000) {
        (0, ms @ 0..1000) => format!("{ms}ms"),
        (0, ms) => format!("{}s", ms as f64 / 1000.0),
        (minutes, ms) => format!("{minutes}m{}s", ms as f64 / 1000.0),
    }
}

fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    // Actions and edits are fixed words. If one is ever invalid in a header, the answer matters
    // more than the report.
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        rows.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    /// Creates a caller in open mode.
    fn anybody() -> Caller {
        Caller::new(weir_store::Tenant::ANONYMOUS, None)
    }

    /// Creates a configuration that lets callers choose.
    fn allowing() -> Context {
        let allowed_policies = vec!["zones".to_owned(), "mine".to_owned()];
        Context { allow_bypass: true, allowed_policies, ..Config::default().context }
    }

    #[test]
    fn a_policy_is_one_of_those_allowed() {
        let policy = |name: &'static str, context: &Context| {
            options(&headers(&[("x-weir-policy", name)]), context, &anybody())
                .map(|options| options.policy)
                .map_err(|error| error.message)
        };
        assert_eq!(policy("mine", &allowing()), Ok(Some("mine".to_owned())));
        let refused = policy("scored", &allowing()).expect_err("not allowed");
        assert!(refused.contains("x-weir-policy") && refused.contains("zones, mine"), "{refused}");
        let refused = policy("zones", &Config::default().context).expect_err("none is allowed");
        assert!(refused.contains("context.allowed_policies"), "{refused}");
    }

    #[test]
    fn what_is_asked_is_read_strictly() {
        let rows = [
            ("x-weir-max-input-tokens", "8000", Ok((Some(8000), false))),
            ("x-weir-max-input-tokens", " 1 ", Ok((Some(1), false))),
            ("x-weir-max-input-tokens", "0", Err(ErrorKind::InvalidRequest)),
            ("x-weir-max-input-tokens", "+5", Err(ErrorKind::InvalidRequest)),
            ("x-weir-max-input-tokens", "-1", Err(ErrorKind::InvalidRequest)),
            ("x-weir-max-input-tokens", "8k", Err(ErrorKind::InvalidRequest)),
            ("x-weir-max-input-tokens", "", Err(ErrorKind::InvalidRequest)),
            ("x-weir-max-input-tokens", "99999999999999999999", Err(ErrorKind::InvalidRequest)),
            ("x-weir-bypass", "1", Ok((None, true))),
            ("x-weir-bypass", "true", Ok((None, true))),
            ("x-weir-bypass", "0", Ok((None, false))),
            ("x-weir-bypass", "yes", Err(ErrorKind::InvalidRequest)),
            ("accept", "*/*", Ok((None, false))),
        ];
        for (name, value, expected) in rows {
            let found = options(&headers(&[(name, value)]), &allowing(), &anybody())
                .map(|options| (options.max_input_tokens, options.bypass));
            if let Err(error) = &found {
                assert!(error.message.contains(name), "{}", error.message);
            }
            assert_eq!(found.map_err(|error| error.kind), expected, "{name}: {value}");
        }
    }

    #[test]
    fn a_limit_said_twice_is_refused() {
        let twice = headers(&[("x-weir-max-input-tokens", "9"), ("x-weir-max-input-tokens", "8")]);
        let error = options(&twice, &allowing(), &anybody()).expect_err("which one counts?");
        assert_eq!(error.kind, ErrorKind::InvalidRequest);
    }

    #[test]
    fn a_bypass_that_is_not_allowed_names_the_key() {
        let error =
            options(&headers(&[("x-weir-bypass", "1")]), &Config::default().context, &anybody())
                .expect_err("not allowed");
        assert_eq!(error.kind, ErrorKind::BypassNotAllowed);
        assert!(error.message.contains("context.allow_bypass"));
        assert!(
            options(&headers(&[("x-weir-bypass", "0")]), &Config::default().context, &anybody())
                .is_ok()
        );
    }
}
