//! `GET /admin/v1/live`: requests in flight, ended ones and sums since the start. Counts nothing
//! itself.

use http::Uri;
use serde::Serialize;
use serde_json::{Value, json};

use super::api::{Answer, done, query};
use super::{AdminState, Refusal, refused};
use crate::proxy::Proxy;
use crate::proxy::live::{Ended, ShownRequest};
use weir_store::budget::NanoUsd;
use weir_store::ledger::signed_usd;
use weir_store::now_ms;

/// Number of ended requests without `limit`: as many as the page shows, because programs ask each second.
const DEFAULT_LIMIT: usize = 200;

/// The answer. It has up to 500 requests, so it is written without a tree of values between.
#[derive(Serialize)]
struct LivePage<'a> {
    object: &'static str,
    now_ms: u64,
    started_ms: u64,
    next: u64,
    /// Sums since the start; money as decimals.
    totals: Value,
    running: &'a [ShownRequest],
    requests: Vec<&'a Ended>,
}

impl AdminState {
    /// Shows the requests in flight, and those that ended after the number `after`: the newest `limit`.
    pub(super) fn live(&self, uri: &Uri) -> Answer {
        let [after, limit] = query(uri, ["after", "limit"])?;
        let limit = limit.map(|text| text.parse::<usize>()).transpose();
        let limit = limit.map_err(|_| refused("limit must be a whole number"))?;
        let after = after.map(|text| text.parse::<u64>()).transpose();
        let after = after.map_err(|_| refused("after must be the number in next"))?.unwrap_or(0);
        let proxy = self.serving()?;
        let look = proxy.live().look(after, limit.unwrap_or(DEFAULT_LIMIT));
        let totals = proxy.journal().metrics().totals();
        let page = LivePage {
            object: "live",
            now_ms: now_ms(),
            started_ms: look.started_ms,
            next: look.next,
            totals: json!({
                "requests": totals.requests + totals.others,
                "observed": totals.observed,
                "compactions": totals.compactions,
                "received_tokens": totals.received_tokens,
                "sent_tokens": totals.sent_tokens,
                "cost_usd": NanoUsd(totals.cost_nano_usd).to_decimal(),
                "saved_usd": signed_usd(totals.saved_nano_usd),
                "planned_tokens": totals.planned_tokens,
                "planned_saved_usd": signed_usd(totals.planned_saved_nano_usd),
                "unpriced": totals.unpriced,
            }),
            running: &look.running,
            requests: look.requests.iter().map(|request| &**request).collect(),
        };
        done(&page)
    }

    /// Returns the proxy in force, once it serves.
    pub(super) fn serving(&self) -> Result<std::sync::Arc<Proxy>, Refusal> {
        let Some(proxy) = self.proxy.get() else {
            let message = "weir does not serve requests yet; try again shortly";
            return Err(Refusal::new(http::StatusCode::SERVICE_UNAVAILABLE, "not_ready", message));
        };
        Ok(proxy())
    }
}
