//! Keys of events and traces.

use super::{EMPTY, Kind::*, Section, keys};

pub(in crate::config) const EVENTS: Section = Section {
    path: "events",
    doc: "Events for operators, posted to a webhook as JSON. No event has content or a secret.",
    keys: &[keys! {
        /// URL to post events to; empty for none. Each post is repeated after a failure, and events
        /// arrive in their order. The log has them too.
        webhook_url = "", Text("URL"), Restart;
        /// Kinds to post: "budget_warning", "budget_exhausted", "breaker_opened", "breaker_closed",
        /// "limit_learned", "store_failing", "store_recovered" and "reload_refused". Empty for all.
        kinds = [], List("kinds"), Restart;
        /// Secret that signs posts by the scheme of Standard Webhooks, as "env:NAME" or "file:PATH": 24 to
        /// 64 bytes in base64, with or without "whsec_" in front.
        secret = "", Text("place"), Restart;
    }],
    ..EMPTY
};

pub(in crate::config) const TRACES: Section = Section {
    path: "traces",
    doc: "OpenTelemetry traces of requests, without content, to a collector.",
    keys: &[keys! {
        /// Base URL of a collector that takes OTLP over HTTP as JSON, such as
        /// "http://127.0.0.1:4318"; `/v1/traces` is added. Empty for none. `OTEL_EXPORTER_OTLP_ENDPOINT`
        /// is used if this is not set.
        /// Headers for the collector, such as a key, stand in `OTEL_EXPORTER_OTLP_HEADERS`, and the
        /// service's name in `OTEL_SERVICE_NAME`.
        endpoint = "", Text("URL"), Restart;
        /// Share of requests with a trace. Of requests that bring a trace context, those that it
        /// samples, and no more than this share of them.
        sample_ratio = 1.0, Share(0, 1000), Restart;
    }],
    ..EMPTY
};
