//! Keys of the listener, of callers' authentication, the admin API and the log.

use super::{DAY_MS, EMPTY, GIB, Kind, Kind::*, Section, each, keys};
use crate::config::choices::{AuthMode, LogFormat, words};

pub(in crate::config) const SERVER: Section = Section {
    path: "server",
    keys: &[keys! {
        /// Listen address: an IP address and a port, or a port alone (8400), which means 127.0.0.1.
        /// The default is loopback only; use 0.0.0.0:8400 to serve other machines.
        listen = "127.0.0.1:8400", TextOrWhole("address"), Restart;
        /// Host names, besides those of loopback, accepted in the `Host` header; all others get
        /// 403. If weir runs on another machine, add the name in your SDKs' base URL.
        allowed_hosts = [], List("host names"), NextRequest;
        /// Maximum open connections. One more takes the place of the one that has idled longest between
        /// requests; if all have requests, its caller gets 503 with `Retry-After`.
        max_connections = 4096, Whole(1, 1_000_000), Restart;
        /// Maximum size of one request body, decompressed. Raise it for large images or inline
        /// files.
        max_body_bytes = 67108864, Whole(1 << 10, 4 * GIB), NextRequest;
        /// Maximum total size of request bodies held at once; callers above it get 503 and retry. While
        /// others hold any, one caller (with virtual keys: one team) holds at most half. Lower it on a
        /// small machine.
        max_bodies_in_flight_bytes = 1073741824, Whole(1 << 10, 1024 * GIB), Restart;
        /// Maximum number of messages per request.
        max_messages = 20000, Whole(1, 10_000_000), NextRequest;
        /// Maximum pause while a caller sends a request's body, or takes nothing of its answer (`idle`), and
        /// time limit for it to send the whole body. Raise that for large files over slow connections.
        body_timeouts_ms = { idle = 30000, total = 600000 },
            Members(&each(["idle", "total"], Whole(1, DAY_MS))), NextRequest;
        /// Time limit for a caller to send its headers (`header`), and for requests in flight to finish
        /// after SIGTERM (`drain`). Keep that below your orchestrator's grace period.
        timeouts_ms = { header = 10000, drain = 30000 }, Members(&[
            ("header", Whole(1, DAY_MS)),
            ("drain", Whole(0, DAY_MS)),
        ]), Restart;
        /// Networks of load balancers that start each connection with a PROXY protocol header
        /// (version 1 or 2), such as "10.0.0.0/8". The header is required and trusted from them,
        /// and never read from others.
        proxy_protocol_from = [], List("networks"), Restart;
        /// PEM files of HTTPS. `cert_file`: certificate chain, which enables HTTPS (TLS 1.2 and 1.3,
        /// HTTP/2 and HTTP/1.1) and disables plain HTTP; empty for plain HTTP. `key_file`: its private
        /// key. `client_ca_file`: client authorities; only callers with a certificate signed by one of
        /// them are served, and empty requests no client certificates. The files are reloaded when they
        /// change, and on SIGHUP; turning HTTPS on or off needs a restart.
        tls = { cert_file = "", key_file = "", client_ca_file = "" }, LISTENER_TLS, NextRequest;
    }],
    ..EMPTY
};

/// Members of a listener's TLS.
const LISTENER_TLS: Kind =
    Members(&each(["cert_file", "key_file", "client_ca_file"], Text("path")));

pub(in crate::config) const CORS: Section = Section {
    path: "cors",
    keys: &[keys! {
        /// Origins of web pages that may use weir, such as "https://chat.example.com". None by
        /// default: otherwise any page open in a browser on this machine could spend your tokens.
        allow_origins = [], List("origins"), NextRequest;
    }],
    ..EMPTY
};

pub(in crate::config) const AUTH: Section = Section {
    path: "auth",
    keys: &[keys! {
        /// "open": each caller sends its own provider key, which is forwarded. "keys": callers use
        /// virtual keys (`weir keys --help`), and weir has the provider key
        /// (`upstream.api_key`). In open mode, requests with a virtual key are refused, so that
        /// its secret is not forwarded.
        mode = "open", Choice(words::<AuthMode>), Restart;
        /// Whether, in open mode and with a provider key in weir, callers on other machines may use
        /// that key.
        allow_anonymous = false, Switch, NextRequest;
        /// Secret of at least 32 characters, for fingerprints of callers in open mode and seals of
        /// compaction items: "env:NAME" for an environment variable or "file:PATH". Weirs with the same
        /// secret open each other's items. By default weir makes one and keeps it in the store.
        secret = "", Text("place"), Restart;
    }],
    ..EMPTY
};

pub(in crate::config) const ADMIN: Section = Section {
    path: "admin",
    keys: &[keys! {
        /// Listen address of the admin API and the dashboard, for holders of the admin token.
        /// Empty for 127.0.0.1:8410 in keys mode and off in open mode; "off" disables it.
        listen = "", TextOrWhole("address"), Restart;
        /// File of the admin token, created if missing, readable only by its user. Empty for
        /// `admin.token` next to the store.
        token_file = "", Text("path"), Restart;
        /// Whether the inspector shows live conversations, with their content, to holders of the
        /// admin token. Needs `context.originals` other than "off".
        show_conversations = false, Switch, NextRequest;
        /// As `server.tls`, for this listener.
        tls = { cert_file = "", key_file = "", client_ca_file = "" }, LISTENER_TLS, NextRequest;
    }],
    ..EMPTY
};

pub(in crate::config) const LOG: Section = Section {
    path: "log",
    keys: &[keys! {
        /// "text" for people, "json" for machines. One line per request, never with content. On a
        /// terminal, "text" is short, and coloured unless `NO_COLOR` is set.
        format = "text", Choice(words::<LogFormat>), Restart;
        /// Lowest level that is logged.
        level = "info", Choice(|| vec!["error", "warn", "info", "debug", "trace"]), NextRequest;
    }],
    ..EMPTY
};
