//! Upstreams that refuse to be asked for a stream's usage: who they are, and the request sent again
//! without the question. Writes and reads no answer that a caller sees.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_ENCODING;
use tokio::time::timeout;

use super::Proxy;
use super::planner::Planned;
use super::upstreams::Upstream;
use crate::config::AskUsage;
use crate::upstream::{Inbound, Outbound, OutboundBody, SendError};

/// The longest refusal that is looked into.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// How long the rest of a refusal is waited for; its caller waits as long for the refusal's head.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(2);
/// What a refusal of the question names.
const NAMES: [&[u8]; 2] = [b"stream_options", b"include_usage"];
/// How many models are remembered. Past that all are forgotten, and asked once more.
const MAX_REFUSERS: usize = 1000;
/// The longest name of a model that is remembered; callers choose them.
const MAX_MODEL_BYTES: usize = 200;

/// The models whose streams the upstream refuses to be asked for their usage.
pub struct Refusers {
    ask_usage: AskUsage,
    models: Mutex<HashSet<String>>,
}

impl Refusers {
    pub fn new(ask_usage: AskUsage) -> Self {
        Self { ask_usage, models: Mutex::new(HashSet::new()) }
    }

    /// Whether streams of `model` are asked for their usage.
    pub fn may_be_asked(&self, model: &str) -> bool {
        match self.ask_usage {
            AskUsage::Always => true,
            AskUsage::Never => false,
            AskUsage::Auto => self.models.lock().is_ok_and(|models| !models.contains(model)),
        }
    }

    /// Remembers that the question was refused for `model`, and taken without it.
    pub fn note(&self, model: &str) {
        let Ok(mut models) = self.models.lock() else { return };
        if self.ask_usage != AskUsage::Auto || model.len() > MAX_MODEL_BYTES {
            return;
        }
        if models.len() >= MAX_REFUSERS {
            models.clear();
        }
        if models.insert(model.to_owned()) {
            tracing::info!(
                target: "weir::models",
                model,
                "the upstream refuses to be asked for the usage of this model's streams"
            );
        }
    }
}

impl Proxy {
    /// Sends a planned request; once more without weir's question for its usage, where that is what
    /// the upstream refuses.
    pub(super) async fn send_asking(
        &self,
        upstream: &Upstream,
        outbound: Outbound,
        planned: &mut Planned,
    ) -> Result<Inbound, SendError> {
        let (Some(_), OutboundBody::Bytes(sent)) = (planned.usage_asked, &outbound.body) else {
            return upstream.client.send(outbound).await;
        };
        let sent = sent.clone();
        let (method, target) = (outbound.method.clone(), outbound.target.clone());
        let headers = outbound.headers.clone();
        let mut inbound = upstream.client.send(outbound).await?;
        if !is_refusal(&mut inbound).await {
            return Ok(inbound);
        }
        let Some(unasked) = planned.unask(&sent) else { return Ok(inbound) };
        let body = OutboundBody::Bytes(unasked);
        let inbound = upstream.client.send(Outbound { method, target, headers, body }).await?;
        if inbound.status.is_success() {
            upstream.taught.refusers.note(&planned.model);
        }
        Ok(inbound)
    }
}

/// Whether an answer refuses the question.
async fn is_refusal(inbound: &mut Inbound) -> bool {
    let may_be =
        matches!(inbound.status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY);
    if !may_be || inbound.headers.contains_key(CONTENT_ENCODING) {
        return false;
    }
    let seen = timeout(REFUSAL_DEADLINE, inbound.body.peek(MAX_REFUSAL_BYTES)).await;
    let Ok(seen) = seen else { return false };
    let names = |name: &&[u8]| seen.windows(name.len()).any(|part| part == *name);
    seen.len() <= MAX_REFUSAL_BYTES && NAMES.iter().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusers_are_remembered_as_told_and_bounded() {
        for (ask_usage, before, after) in [
            (AskUsage::Auto, true, false),
            (AskUsage::Always, true, true),
            (AskUsage::Never, false, false),
        ] {
            let refusers = Refusers::new(ask_usage);
            assert_eq!(refusers.may_be_asked("m"), before);
            refusers.note("m");
            assert_eq!(refusers.may_be_asked("m"), after);
        }
        let refusers = Refusers::new(AskUsage::Auto);
        let long = "m".repeat(MAX_MODEL_BYTES + 1);
        refusers.note(&long);
        assert!(refusers.may_be_asked(&long));
        for number in 0..=MAX_REFUSERS {
            refusers.note(&number.to_string());
        }
        assert!(refusers.may_be_asked("0"));
        assert!(!refusers.may_be_asked(&MAX_REFUSERS.to_string()));
    }
}
