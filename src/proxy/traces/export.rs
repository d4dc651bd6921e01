//! Export of traces: batches of spans in OTLP's JSON, posted to a collector in the background.
//!
//! Written by hand: by itself, the release build of OpenTelemetry's crates (`opentelemetry-otlp` 0.33
//! with `http-proto`, and what it needs) takes 45 CPU-seconds, its exporter of batches blocks a thread
//! of its own, and it does not report how many spans it drops. The format has one page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::{Finished, Span, SpanKind};
use crate::proxy::outbox::Parcel;
use crate::upstream::Collector;
use weir_store::hex;

/// Maximum time that a span waits for others.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of spans past which a batch is sent.
const MAX_BATCH_SPANS: usize = 512;
/// Code of an error in a span's status.
const STATUS_ERROR: u8 = 2;

/// Numbers of spans that left the queue.
#[derive(Debug, Default)]
pub(super) struct Exported {
    pub(super) exported: AtomicU64,
    /// Not accepted after all retries.
    pub(super) failed: AtomicU64,
}

/// Exports traces until their queue ends.
pub(super) async fn export_all(
    collector: Collector,
    service_name: String,
    counts: Arc<Exported>,
    mut waiting: mpsc::Receiver<Parcel<Finished>>,
) {
    let mut was_failing = false;
    while let Some(parcel) = waiting.recv().await {
        let mut flushed = None;
        let mut traces = Vec::new();
        let mut spans = 0;
        let mut take = |parcel: Parcel<Finished>| match parcel {
            Parcel::Item(trace) => {
                spans += trace.spans.len();
                traces.push(trace);
                spans < MAX_BATCH_SPANS
            }
            Parcel::Flush(done) => {
                flushed = Some(done);
                false
            }
        };
        let deadline = Instant::now() + INTERVAL;
        let mut has_room = take(parcel);
        while has_room && let Ok(Some(parcel)) = timeout_at(deadline, waiting.recv()).await {
            has_room = take(parcel);
        }
        if !traces.is_empty() {
            let posted = collector.post(body(&service_name, &traces)).await;
            let counter = if posted.is_ok() { &counts.exported } else { &counts.failed };
            counter.fetch_add(spans as u64, Ordering::Relaxed);
            let is_failing = posted.is_err();
            if let Err(error) = posted
                && !was_failing
            {
                tracing::warn!(target: "weir::traces", error, "the collector does not accept traces");
            }
            was_failing = is_failing;
        }
        if let Some(done) = flushed {
            // Nobody may wait any more.
            let _ = done.send(());
        }
    }
}

/// Returns an export request.
fn body(service_name: &str, traces: &[Finished]) -> Vec<u8> {
    let spans: Vec<Value> = traces
        .iter()
        .flat_map(|trace| trace.spans.iter().map(|span| rendered(trace, span)))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    let resource = [("service.name", service_name.into()), ("service.version", version.into())];
    let resource: Vec<Value> = resource.iter().map(pair).collect();
    let request = json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "weir", "version": version}, "spans": spans}],
    }]});
    request.to_string().into_bytes()
}

/// Renders a span. Times and whole numbers are texts, since JSON's numbers are not exact.
fn rendered(trace: &Finished, span: &Span) -> Value {
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    let mut rendered = json!({
        "traceId": hex(&trace.trace_id),
        "spanId": hex(&span.id),
        "parentSpanId": span.parent.map(|parent| hex(&parent)).unwrap_or_default(),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": span.start_ns.to_string(),
        "endTimeUnixNano": span.end_ns.to_string(),
        "attributes": span.attributes.iter().map(pair).collect::<Vec<_>>(),
    });
    if span.is_error {
        rendered["status"] = json!({"code": STATUS_ERROR});
    }
    rendered
}

fn pair((key, value): &(&'static str, Value)) -> Value {
    json!({"key": key, "value": any_value(value)})
}

fn any_value(value: &Value) -> Value {
    match value {
        Value::String(text) => json!({"stringValue": text}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::Bool(flag) => json!({"boolValue": flag}),
        Value::Array(list) => {
            json!({"arrayValue": {"values": list.iter().map(any_value).collect::<Vec<_>>()}})
        }
        Value::Null | Value::Object(_) => Value::Null,
    }
}
