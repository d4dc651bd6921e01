//! Answers that come whole: held until no call of the recall tool is left, and joined to one.

use http::HeaderValue;
use http::header::CONTENT_LENGTH;

use super::{RecallExchange, is_readable, not_continued};
use crate::proxy::error::Proxied;
use crate::proxy::record::Record;
use crate::proxy::relay::meter;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::headers::is_event_stream;
use crate::upstream::{AnswerBody, Inbound};
use weir_engine::wire::recall_tool::{Next, joined, read};
use weir_engine::wire::usage::{Meter, Metered};

/// A larger answer passes as it is, or is an error behind other rounds.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Answers the calls of an answer, round by round. Returns the last answer, with what was said in all of
/// them; an error of the upstream is returned as it is.
pub(super) async fn answered(
    mut recall: RecallExchange,
    settings: &Settings,
    mut inbound: Inbound,
    record: &mut Record,
) -> Proxied<(Inbound, usize)> {
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    loop {
        let is_read = is_readable(&inbound) && !is_event_stream(&inbound.headers);
        let body = match is_read {
            true => inbound.body.peek(MAX_ANSWER_BYTES).await.to_vec(),
            false => Vec::new(),
        };
        if !is_read || !inbound.body.is_seen_whole() {
            // Behind another round it may hold calls, and lacks what was said before.
            return match bodies.is_empty() || !inbound.status.is_success() {
                true => Ok((inbound, 0)),
                false => Err(not_continued(inbound.status)),
            };
        }
        let round = read(recall.protocol, recall.name, &body);
        let goes_on = round.next == Next::Recall && recall.may_go_on();
        let metered = (goes_on || !bodies.is_empty()).then(|| metered(&inbound, &body));
        bodies.push(body);
        if !goes_on {
            let joined = joined_of(&recall, &bodies);
            recall.keep(&round).await;
            let rounds = bodies.len() - 1;
            let Some(joined) = joined else { return Ok((inbound, rounds)) };
            if let Some(metered) = metered {
                // What the caller gets has the usage of all rounds.
                record.last_round(inbound.status, metered).await;
            }
            return Ok((with_body(inbound, joined), rounds));
        }
        record.round(inbound.status, metered.unwrap_or_default()).await;
        recall.hold(bodies.last().map_or(0, Vec::len))?;
        let presence = record.presence();
        let sent = recall.go_on(settings, round, record, || presence.has_left()).await?;
        (recall, inbound) = sent.ok_or_else(|| not_continued(inbound.status))?;
    }
}

fn joined_of(recall: &RecallExchange, bodies: &[Vec<u8>]) -> Option<Vec<u8>> {
    let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    joined(recall.protocol, recall.name, &bodies)
}

/// Reads the facts of a complete answer.
fn metered(inbound: &Inbound, body: &[u8]) -> Metered {
    let metered = |mut meter: Meter| {
        meter.feed(body);
        meter.finish()
    };
    meter(&inbound.headers).map(metered).unwrap_or_default()
}

fn with_body(mut inbound: Inbound, body: Vec<u8>) -> Inbound {
    inbound.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    inbound.body = AnswerBody::whole(body);
    inbound
}
