//! Keys of memory, the store, shared counters, the journal and budgets.

use super::{DAY_MS, EMPTY, GIB, HOUR_MS, Kind::*, Section, each, keys};
use crate::config::choices::{Clamp, OnFailure, words};

/// A century.
const MAX_DAYS: u64 = 36_500;

pub(in crate::config) const CACHE: Section = Section {
    path: "cache",
    keys: &[keys! {
        /// Memory for token counts of known messages, and as much again for compaction plans of known
        /// conversations; half as much is for readings of messages in conversations that approach their
        /// limits. More memory saves work in longer conversations; results are the same with any size.
        max_bytes = 67108864, Whole(0, 1024 * GIB), Restart;
    }],
    ..EMPTY
};

pub(in crate::config) const STORE: Section = Section {
    path: "store",
    keys: &[keys! {
        /// File for data that outlives the process; weir creates it, readable only by its user, and
        /// several weirs on one machine may share it. Empty for `weir/weir.db` in the user's state
        /// folder (`XDG_STATE_HOME`, or `~/.local/state`); ":memory:" for no file. If it cannot be
        /// written, weir warns and keeps the data in memory.
        path = "", Text("path"), Restart;
        /// PostgreSQL server instead of a file, for weirs on several machines, such as
        /// "postgres://user:password@host:5432/weir". The database must exist; weir creates its
        /// tables, in the first schema of the role's `search_path`. A pooler in between must keep
        /// sessions. Prefer `WEIR_STORE__URL`: the URL contains a password. "?sslmode=require"
        /// connects only with TLS, with a certificate that the system's roots (`SSL_CERT_FILE`)
        /// verify; "?sslmode=disable" never uses TLS. By default, TLS is used if the server offers
        /// it, and never with a server on this machine.
        url = "", Text("URL"), Restart;
    }],
    ..EMPTY
};

pub(in crate::config) const REDIS: Section = Section {
    path: "redis",
    keys: &[keys! {
        /// Redis for shared counters of several weirs on one store: spent and held budgets, and
        /// each key's rate and concurrency. Write redis://:PASSWORD@HOST:6379, or rediss:// for
        /// TLS; empty counts in this weir alone. It is a secret: prefer `WEIR_REDIS__URL`. While it
        /// is silent or refuses, each weir limits keys by itself; budgets that are spent by the
        /// store's records stay spent, and `budgets.on_failure` decides about the others.
        /// `?prefix=NAME` at the end replaces the prefix "weir" of all keys in it.
        url = "", Text("URL"), Restart;
    }],
    ..EMPTY
};

pub(in crate::config) const LEDGER: Section = Section {
    path: "ledger",
    keys: &[keys! {
        /// Whether requests are recorded.
        enabled = true, Switch, Restart;
        /// Requests are recorded in a log next to the store's file before they are sent and again
        /// when they end, and moved into the file a moment later. They survive the end of the process at
        /// once, and a power loss after a tenth of a second. If that fails, "open" sends them
        /// anyway and "closed" refuses them; `/readyz` reports the failing store.
        on_failure = "open", Choice(words::<OnFailure>), Restart;
        /// How long each request's row and daily totals are kept.
        retention_days = { requests = 90, totals = 1100 },
            Members(&each(["requests", "totals"], Whole(1, MAX_DAYS))), Restart;
        /// Whether each compaction leaves a receipt: a digest of each message and how it was treated.
        /// Callers read theirs at `GET /weir/v1/receipts/ID` with the credential and the ID of the
        /// request (`x-weir-request-id`). Receipts are kept as long as rows, 256 MiB at most.
        receipts = false, Switch, NextRequest;
        /// How long weir waits for an answer and reads it for its usage after the caller has left;
        /// then it cancels the request. 0 cancels at once.
        drain_ms = 2000, Whole(0, DAY_MS), Restart;
    }],
    ..EMPTY
};

pub(in crate::config) const CONVERSATIONS: Section = Section {
    path: "conversations",
    doc: "Conversations that weir keeps in its store for callers that name them with the header \
          `x-weir-conversation`.",
    keys: &[keys! {
        /// Whether callers may keep conversations. A virtual key can differ (`weir keys limit ID
        /// --conversations true`).
        enabled = false, Switch, NextRequest;
        /// Maximum number of kept messages put before those of a request. Of a longer conversation
        /// the newest are used, from the beginning of a turn; the start moves on by half of this
        /// number at once, so that the prompt cache stays warm.
        max_messages = 200, Whole(2, 10_000), MovesCompactions;
        /// How long a conversation is kept after its last change.
        retention_days = 30, Whole(1, MAX_DAYS), NextRequest;
        /// Maximum size of one conversation, and of all. Above the first, its oldest turns are deleted down
        /// to half of it; above the second, the caller with the most loses its oldest conversations.
        max_bytes = { conversation = 4194304, total = 268435456 }, Members(&[
            ("conversation", Whole(1 << 16, 1 << 26)),
            ("total", Whole(1 << 20, 1024 * GIB)),
        ]), NextRequest;
    }],
    ..EMPTY
};

pub(in crate::config) const BUDGETS: Section = Section {
    path: "budgets",
    doc: "How budgets are enforced; `weir budgets --help` sets them.",
    keys: &[keys! {
        /// Time zone for the start of hours, days, weeks and months: an IANA name, such as
        /// "Europe/Berlin".
        time_zone = "UTC", Text("time zone"), Restart;
        /// What is lowered so that budgets last. "output": a request's output limit is lowered, or
        /// added, to fit the rest, so that they are never overspent. "context": also, once 80 % of a
        /// budget of the caller are spent, conversations have half of their limit. "off": neither;
        /// output beyond the estimate overspends.
        clamp = "output", Choice(words::<Clamp>), Restart;
        /// How long a request waits for other requests that hold the remaining amount.
        wait_ms = 30000, Whole(0, HOUR_MS), Restart;
        /// While the state of a budget is unknown, "open" sends requests anyway and "closed"
        /// refuses them.
        on_failure = "open", Choice(words::<OnFailure>), Restart;
    }],
    ..EMPTY
};
