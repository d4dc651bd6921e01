//! Traces of requests for an OpenTelemetry collector: a span for the request, and one in it for each
//! plan, hold, attempt and settlement. They hold names and figures, no content and no credential.
//! Nothing waits for them; without a collector nothing is recorded.

pub mod context;
mod export;
pub mod names;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::context::TraceContext;
use self::export::{Exported, export_all};
use crate::config::Config;
use crate::proxy::outbox::Outbox;
use crate::proxy::random::random;
use crate::upstream::Collector;
use weir_store::now_ms;

/// Maximum number of traces that wait to be exported; further ones are dropped and counted.
const MAX_WAITING: usize = 2048;
/// Maximum number of spans in a trace, which retries could exceed.
const MAX_SPANS: usize = 64;
/// Maximum time that shutdown waits for traces to be exported.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Relation of a span to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    Server,
    Client,
}

/// Attributes by their names.
pub type Attributes = Vec<(&'static str, Value)>;

/// Interval of a request.
#[derive(Debug)]
struct Span {
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    kind: SpanKind,
    name: Cow<'static, str>,
    start_ns: u64,
    end_ns: u64,
    attributes: Attributes,
    is_error: bool,
}

/// Trace of a request that has ended.
#[derive(Debug)]
struct Finished {
    trace_id: [u8; 16],
    spans: Vec<Span>,
}

/// Numbers of spans since the process started; dropped ones are counted by trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceCounts {
    pub exported_spans: u64,
    pub failed_spans: u64,
    pub dropped_traces: u64,
}

struct Inner {
    collector: Collector,
    service_name: String,
    sample_permille: u32,
    /// Decides about trace IDs that callers have chosen.
    seed: u64,
    outbox: Outbox<Finished>,
    exported: Arc<Exported>,
}

/// Maker of traces; of none without a collector. Clones share it.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Inner>>);

impl Tracer {
    /// Creates the tracer that `config` asks for.
    pub fn new(config: &Config) -> Self {
        let traces = &config.traces;
        if traces.endpoint.is_empty() {
            return Self::default();
        }
        let inner = Collector::new(&traces.endpoint, &traces.headers).map(|collector| Inner {
            collector,
            service_name: traces.service_name.clone(),
            sample_permille: traces.sample_permille,
            seed: u64::from_be_bytes(random().unwrap_or_default()),
            outbox: Outbox::new(MAX_WAITING),
            exported: Arc::default(),
        });
        Self(inner.map(Arc::new))
    }

    /// Starts the trace of a request that began at `begun`; `None` if it is not sampled. A sound
    /// context in its headers is continued if it is sampled there and within the operator's share: a
    /// caller cannot choose an ID that is.
    pub fn begin(&self, headers: &HeaderMap, begun: Instant) -> Option<Box<Trace>> {
        let inner = self.0.as_ref()?;
        let given = TraceContext::from_headers(headers);
        let trace_id = match given {
            Some(given) => given.trace_id,
            None => random().ok()?,
        };
        let is_sampled = match given {
            Some(given) => {
                let place = xxh3_64_with_seed(&given.trace_id, inner.seed);
                given.is_sampled && place % 1000 < u64::from(inner.sample_permille)
            }
            None => is_sampled(&trace_id, inner.sample_permille),
        };
        if !is_sampled {
            return None;
        }
        let begun_ns = now_ms().saturating_mul(1_000_000);
        let parent = given.map(|given| given.span_id);
        let inner = Arc::clone(inner);
        let own = random().ok()?;
        Some(Box::new(Trace {
            inner,
            trace_id,
            own,
            parent,
            begun,
            begun_ns,
            spans: Vec::new(),
            attempt: None,
        }))
    }

    /// Returns the numbers of spans so far.
    pub fn counts(&self) -> TraceCounts {
        let Some(inner) = &self.0 else { return TraceCounts::default() };
        TraceCounts {
            exported_spans: inner.exported.exported.load(Ordering::Relaxed),
            failed_spans: inner.exported.failed.load(Ordering::Relaxed),
            dropped_traces: inner.outbox.dropped(),
        }
    }

    /// Waits, within bounds, until waiting traces are exported.
    pub async fn finish(&self) {
        if let Some(inner) = &self.0 {
            inner.outbox.flush(FLUSH_TIMEOUT).await;
        }
    }
}

/// Whether a new trace is recorded. Its random ID decides, so that all services decide alike.
fn is_sampled(trace_id: &[u8; 16], permille: u32) -> bool {
    let low = trace_id.iter().skip(8).fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
    low % 1000 < u64::from(permille)
}

/// Trace of a request, sent to the collector when it ends.
pub struct Trace {
    inner: Arc<Inner>,
    trace_id: [u8; 16],
    /// ID of the request's own span.
    own: [u8; 8],
    /// The caller's span.
    parent: Option<[u8; 8]>,
    begun: Instant,
    begun_ns: u64,
    spans: Vec<Span>,
    /// The attempt that has not ended: its place among the spans.
    attempt: Option<usize>,
}

impl Trace {
    fn ns(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.begun).as_nanos();
        self.begun_ns.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Adds a step of the request that lasted from `start` to `end`.
    pub fn step(
        &mut self,
        name: &'static str,
        (start, end): (Instant, Instant),
        is_error: bool,
        attributes: Attributes,
    ) {
        let times = (self.ns(start), self.ns(end));
        let place = self.push(SpanKind::Internal, name.into(), times, attributes);
        if let Some(span) = place.and_then(|place| self.spans.get_mut(place)) {
            span.is_error = is_error;
        }
    }

    /// Adds a span below the request's own; returns its place, if there is room.
    fn push(
        &mut self,
        kind: SpanKind,
        name: Cow<'static, str>,
        (start_ns, end_ns): (u64, u64),
        attributes: Attributes,
    ) -> Option<usize> {
        let (id, parent) = (random().ok()?, Some(self.own));
        if self.spans.len() >= MAX_SPANS {
            return None;
        }
        let is_error = false;
        self.spans.push(Span { id, parent, kind, name, start_ns, end_ns, attributes, is_error });
        Some(self.spans.len() - 1)
    }

    /// Starts an attempt at an upstream, and returns the context for its headers. An attempt that is
    /// still open has failed.
    pub fn attempt(&mut self, name: String, attributes: Attributes) -> Option<HeaderValue> {
        self.attempt_ended(true, Vec::new());
        let start_ns = self.ns(Instant::now());
        let times = (start_ns, start_ns);
        self.attempt = self.push(SpanKind::Client, name.into(), times, attributes);
        let span_id = self.spans.get(self.attempt?)?.id;
        Some(TraceContext { trace_id: self.trace_id, span_id, is_sampled: true }.header())
    }

    /// Ends the attempt that is open, if one is.
    pub fn attempt_ended(&mut self, is_error: bool, attributes: Attributes) {
        let end_ns = self.ns(Instant::now());
        let open = self.attempt.take().and_then(|place| self.spans.get_mut(place));
        if let Some(span) = open {
            span.end_ns = end_ns;
            span.is_error = is_error;
            span.attributes.extend(attributes);
        }
    }

    /// Ends the request, and sends its trace in the background.
    pub fn finish(mut self, name: String, is_error: bool, attributes: Attributes) {
        let end_ns = self.ns(Instant::now());
        let mut spans = std::mem::take(&mut self.spans);
        let (id, parent, kind) = (self.own, self.parent, SpanKind::Server);
        let (name, start_ns) = (name.into(), self.begun_ns);
        spans.push(Span { id, parent, kind, name, start_ns, end_ns, attributes, is_error });
        let Inner { collector, service_name, outbox, exported, .. } = &*self.inner;
        outbox.put(Finished { trace_id: self.trace_id, spans }, |waiting| {
            export_all(collector.clone(), service_name.clone(), Arc::clone(exported), waiting)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_sampled_traces() {
        let sampled = |permille| {
            let ids = (0..10_000_u64).map(|number| {
                let mut id = [0; 16];
                id[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                id
            });
            ids.filter(|id| is_sampled(id, permille)).count()
        };
        assert_eq!((sampled(0), sampled(1000)), (0, 10_000));
        let half = sampled(500);
        assert!((4_700..5_300).contains(&half), "{half}");
    }
}
