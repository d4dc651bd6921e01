//! Record of every request: its contents, the findings about it, and how it ended.
//!
//! Holds no more than its bounds allow and knows nothing of the meaning of requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Version};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::locked;

/// One request as this server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Number of the request from 1, in order of arrival.
    pub number: u64,
    /// Number of the connection from 1, in order of acceptance.
    pub connection: u64,
    pub version: Version,
    pub method: Method,
    /// Path and query as received.
    pub path: String,
    pub headers: HeaderMap,
    /// Empty if the log's bound on bodies dropped it.
    pub body: Bytes,
    pub body_bytes: usize,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    /// Output tokens of a whole answer, whether or not all of it was sent.
    pub completion_tokens: Option<u64>,
    /// Status of the answer; 0 if there is none.
    pub status: u16,
    /// The whole answer was handed to the connection.
    pub completed: bool,
    /// The caller left before that.
    pub client_left: bool,
    /// This server broke it off before that, because of a fault.
    pub cut: bool,
}

impl Seen {
    /// Whether nothing more will happen to it.
    pub fn ended(&self) -> bool {
        self.completed || self.client_left || self.cut
    }

    /// Renders it for `GET /scripted/log`.
    pub fn to_json(&self, with_body: bool) -> Value {
        let headers: Vec<Value> = self
            .headers
            .iter()
            .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
            .collect();
        let mut entry = json!({
            "number": self.number,
            "connection": self.connection,
            "version": format!("{:?}", self.version),
            "method": self.method.as_str(),
            "path": self.path,
            "headers": headers,
            "body_bytes": self.body_bytes,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "status": self.status,
            "completed": self.completed,
            "client_left": self.client_left,
            "cut": self.cut,
        });
        if with_body {
            entry["body_base64"] = Value::from(STANDARD.encode(&self.body));
        }
        entry
    }
}

pub struct Log {
    entries: Mutex<Entries>,
    changed: Notify,
    max_entries: usize,
    max_body_bytes: usize,
}

#[derive(Default)]
struct Entries {
    seen: VecDeque<Seen>,
    /// Number of the first entry in `seen`.
    first: u64,
    next: u64,
    body_bytes: usize,
    /// Entries before this number have dropped their bodies.
    bodies_from: u64,
}

impl Entries {
    fn at(&mut self, number: u64) -> Option<&mut Seen> {
        let index = number.checked_sub(self.first)?;
        self.seen.get_mut(usize::try_from(index).ok()?)
    }

    fn drop_oldest_bodies(&mut self, max_body_bytes: usize) {
        while self.body_bytes > max_body_bytes && self.bodies_from < self.next {
            let number = self.bodies_from;
            self.bodies_from += 1;
            let freed = self.at(number).map(|seen| std::mem::take(&mut seen.body));
            self.body_bytes -= freed.map_or(0, |body| body.len());
        }
    }
}

impl Log {
    pub fn new(max_entries: usize, max_body_bytes: usize) -> Self {
        let entries = Entries { first: 1, next: 1, bodies_from: 1, ..Entries::default() };
        Self {
            entries: Mutex::new(entries),
            changed: Notify::new(),
            max_entries: max_entries.max(1),
            max_body_bytes,
        }
    }

    /// Records a request; its ticket completes the entry.
    pub fn open(self: &Arc<Self>, head: &Parts, connection: u64) -> Ticket {
        let path = head.uri.path_and_query().map_or("", |path| path.as_str());
        let mut entries = locked(&self.entries);
        let number = entries.next;
        entries.next += 1;
        entries.seen.push_back(Seen {
            number,
            connection,
            version: head.version,
            method: head.method.clone(),
            path: path.to_owned(),
            headers: head.headers.clone(),
            body: Bytes::new(),
            body_bytes: 0,
            prompt_tokens: None,
            cached_tokens: None,
            completion_tokens: None,
            status: 0,
            completed: false,
            client_left: false,
            cut: false,
        });
        while entries.seen.len() > self.max_entries {
            let oldest = entries.seen.pop_front();
            entries.body_bytes -= oldest.map_or(0, |seen| seen.body.len());
            entries.first += 1;
            entries.bodies_from = entries.bodies_from.max(entries.first);
        }
        drop(entries);
        self.changed.notify_waiters();
        Ticket { log: self.clone(), number, open: true }
    }

    /// Returns a ticket without an entry, for answers that are not recorded.
    pub fn unlogged(self: &Arc<Self>) -> Ticket {
        Ticket { log: self.clone(), number: 0, open: false }
    }

    pub fn read<T>(&self, use_entries: impl FnOnce(&[Seen]) -> T) -> T {
        use_entries(locked(&self.entries).seen.make_contiguous())
    }

    /// Clears the log; requests still open continue unrecorded.
    pub fn clear(&self) {
        let mut entries = locked(&self.entries);
        entries.seen.clear();
        entries.first = entries.next;
        entries.bodies_from = entries.next;
        entries.body_bytes = 0;
    }

    pub async fn wait_for(&self, holds: impl Fn(&[Seen]) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Waiting is registered before the check, so that no change is missed.
            changed.as_mut().enable();
            if self.read(&holds) {
                return;
            }
            changed.await;
        }
    }
}

/// Right to finish one entry. If it is dropped while open, the caller has left.
pub struct Ticket {
    log: Arc<Log>,
    number: u64,
    open: bool,
}

impl Ticket {
    fn change(&self, change: impl FnOnce(&mut Seen)) {
        // Number 0 is before every entry.
        if let Some(seen) = locked(&self.log.entries).at(self.number) {
            change(seen);
        }
        self.log.changed.notify_waiters();
    }

    pub fn body(&self, body: &Bytes) {
        let mut entries = locked(&self.log.entries);
        let keep = body.len() <= self.log.max_body_bytes;
        let Some(seen) = entries.at(self.number) else {
            return;
        };
        seen.body_bytes = body.len();
        if keep {
            seen.body = body.clone();
            entries.body_bytes += body.len();
            entries.drop_oldest_bodies(self.log.max_body_bytes);
        }
    }

    pub fn counted(&self, prompt_tokens: u64, cached_tokens: Option<u64>) {
        self.change(|seen| {
            seen.prompt_tokens = Some(prompt_tokens);
            seen.cached_tokens = cached_tokens;
        });
    }

    pub fn said(&self, completion_tokens: u64) {
        self.change(|seen| seen.completion_tokens = Some(completion_tokens));
    }

    pub fn status(&self, status: u16) {
        self.change(|seen| seen.status = status);
    }

    pub fn complete(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            self.change(|seen| seen.completed = true);
        }
    }

    /// Records that this server ends the exchange itself.
    pub fn cut(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            self.change(|seen| seen.cut = true);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            self.change(|seen| seen.client_left = true);
        }
    }
}
