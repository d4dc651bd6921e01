//! Requests in flight, and the newest ended ones, for the operator's view. Both are bounded. Holds
//! names and figures, no part of a conversation.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::admit::caller::Caller;
use weir_store::ledger::Attribution;
use weir_store::now_ms;

/// Maximum number of ended requests that are kept.
pub const MAX_ENDED: usize = 500;
/// Maximum number of requests in flight that are listed.
pub const MAX_RUNNING: usize = 1000;

/// Requests in flight and ended ones.
#[derive(Debug)]
pub struct Live {
    pub started_ms: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the latest request that began, and of the latest that ended.
    begun: u64,
    ended: u64,
    running: BTreeMap<u64, Arc<Running>>,
    /// Oldest first; the newest has the number `ended`.
    requests: VecDeque<Arc<Ended>>,
}

/// Request in flight.
#[derive(Debug)]
struct Running {
    begun_ms: u64,
    route: &'static str,
    caller: Caller,
    known: Mutex<Known>,
}

/// Facts of a request in flight that become known one after the other.
#[derive(Debug, Clone, Default)]
struct Known {
    model: Option<String>,
    attribution: Arc<Attribution>,
    /// Tokens as received and as sent, by weir's count.
    tokens: Option<(u64, u64)>,
}

/// Place of a request among those in flight, until it is dropped.
#[derive(Debug)]
pub struct Entry {
    live: Arc<Live>,
    seq: u64,
    /// `None` if there was no room to list it.
    running: Option<Arc<Running>>,
}

/// Ended request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ended<Text = &'static str> {
    /// Number of the request in the order of ends.
    pub seq: u64,
    pub ended_ms: u64,
    pub route: Text,
    pub model: Option<String>,
    pub status: Option<u16>,
    pub outcome: Text,
    pub action: Option<String>,
    /// Steps of the compaction that the request caused.
    pub steps: Option<String>,
    pub received_tokens: Option<u64>,
    pub sent_tokens: Option<u64>,
    pub limit_tokens: Option<u64>,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cost_usd: Option<String>,
    pub saved_usd: Option<String>,
    /// Plan of a compaction that observe mode leaves out.
    pub planned_tokens: Option<u64>,
    pub planned_saved_usd: Option<String>,
    pub duration_ms: u64,
    pub first_byte_ms: Option<u64>,
    pub plan_ms: Option<f64>,
    pub key: Option<String>,
    pub team: Option<String>,
    pub upstream: Option<String>,
    pub conversation: Option<String>,
    pub agent: Option<String>,
    pub parent: Option<String>,
    pub class: Option<String>,
    /// Code of weir's own error.
    pub error: Option<Text>,
}

/// Request in flight, as shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownRequest<Text = &'static str> {
    pub seq: u64,
    pub begun_ms: u64,
    pub route: Text,
    pub model: Option<String>,
    pub key: Option<String>,
    pub team: Option<String>,
    pub conversation: Option<String>,
    pub agent: Option<String>,
    pub class: Option<String>,
    pub received_tokens: Option<u64>,
    pub sent_tokens: Option<u64>,
}

/// Requests in flight, and those that ended after a number.
#[derive(Debug)]
pub struct Look {
    pub started_ms: u64,
    /// Number of the latest ended request.
    pub next: u64,
    pub running: Vec<ShownRequest>,
    pub requests: Vec<Arc<Ended>>,
}

impl Default for Live {
    fn default() -> Self {
        Self { started_ms: now_ms(), state: Mutex::default() }
    }
}

impl Live {
    /// Lists a request that begins.
    pub fn begin(self: &Arc<Self>, route: &'static str, caller: &Caller) -> Entry {
        let mut state = self.state.lock();
        state.begun += 1;
        let seq = state.begun;
        let running = (state.running.len() < MAX_RUNNING).then(|| {
            let (begun_ms, caller) = (now_ms(), caller.clone());
            let running = Running { begun_ms, route, caller, known: Mutex::default() };
            let running = Arc::new(running);
            state.running.insert(seq, Arc::clone(&running));
            running
        });
        Entry { live: Arc::clone(self), seq, running }
    }

    /// Adds a request that has ended.
    pub fn ended(&self, request: Ended) {
        let mut state = self.state.lock();
        state.ended += 1;
        let seq = state.ended;
        // The oldest is dropped outside the lock.
        let _oldest = (state.requests.len() >= MAX_ENDED).then(|| state.requests.pop_front());
        state.requests.push_back(Arc::new(Ended { seq, ..request }));
        drop(state);
    }

    /// Returns the requests in flight, oldest first, and those that ended after number `after`,
    /// oldest first: the newest `limit`. A number that does not exist yet, as after a restart, returns
    /// all.
    pub fn look(&self, after: u64, limit: usize) -> Look {
        let state = self.state.lock();
        let running: Vec<(u64, Arc<Running>)> =
            state.running.iter().map(|(seq, running)| (*seq, Arc::clone(running))).collect();
        let next = state.ended;
        let after = if after > next { 0 } else { after };
        let new = usize::try_from(next - after).unwrap_or(usize::MAX);
        let new = new.min(state.requests.len()).min(limit);
        let requests = state.requests.range(state.requests.len() - new..).cloned().collect();
        drop(state);
        let running = running.into_iter().map(|(seq, running)| running.shown(seq)).collect();
        Look { started_ms: self.started_ms, next, running, requests }
    }
}

impl Running {
    fn shown(&self, seq: u64) -> ShownRequest {
        let known = self.known.lock().clone();
        let key = self.caller.key.as_ref();
        let [conversation, agent, _, class] =
            known.attribution.labels().map(|label| label.map(str::to_owned));
        ShownRequest {
            seq,
            begun_ms: self.begun_ms,
            route: self.route,
            model: known.model,
            key: key.map(|key| key.id.clone()),
            team: key.map(|key| key.team.clone()),
            conversation,
            agent,
            class,
            received_tokens: known.tokens.map(|(received, _)| received),
            sent_tokens: known.tokens.map(|(_, sent)| sent),
        }
    }
}

impl Entry {
    /// Shows the origin of the request.
    pub fn attributed(&self, attribution: &Arc<Attribution>) {
        self.note(|known| known.attribution = Arc::clone(attribution));
    }

    /// Shows the model and the size of the request.
    pub fn planned(&self, model: &str, received_tokens: u64, sent_tokens: u64) {
        self.note(|known| {
            known.model = Some(model.to_owned());
            known.tokens = Some((received_tokens, sent_tokens));
        });
    }

    /// Adds the request to the ended ones.
    pub fn ended(&self, request: Ended) {
        self.live.ended(request);
    }

    fn note(&self, change: impl FnOnce(&mut Known)) {
        if let Some(running) = &self.running {
            change(&mut running.known.lock());
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.live.state.lock().running.remove(&self.seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_store::Tenant;

    #[test]
    fn the_newest_requests_are_kept_and_shown_once() {
        let live = Arc::new(Live::default());
        assert_eq!(live.look(0, MAX_ENDED).next, 0);
        for number in 0..MAX_ENDED as u64 + 20 {
            live.ended(Ended { duration_ms: number, ..Ended::default() });
        }
        let all = live.look(0, MAX_ENDED);
        assert_eq!((all.next, all.requests.len()), (MAX_ENDED as u64 + 20, MAX_ENDED));
        let first = &all.requests[0];
        assert_eq!((first.seq, first.duration_ms), (21, 20), "the oldest that is kept");
        assert!(all.requests.is_sorted_by_key(|request| request.seq));
        let seqs = |after: u64, limit: usize| {
            let requests = live.look(after, limit).requests;
            requests.iter().map(|request| request.seq).collect::<Vec<_>>()
        };
        assert_eq!(seqs(all.next, MAX_ENDED), [] as [u64; 0]);
        assert_eq!(seqs(all.next - 3, MAX_ENDED), [518, 519, 520]);
        assert_eq!(seqs(all.next - 3, 2), [519, 520], "the newest");
        assert_eq!(seqs(0, 0), [] as [u64; 0]);
        assert_eq!(seqs(all.next + 1, MAX_ENDED).len(), MAX_ENDED, "a number of another process");
    }

    #[test]
    fn requests_in_flight_are_listed_until_they_end() {
        let live = Arc::new(Live::default());
        let caller = Caller::new(Tenant::ANONYMOUS, None);
        let mut entries: Vec<Entry> =
            (0..MAX_RUNNING + 5).map(|_| live.begin("chat/completions", &caller)).collect();
        assert_eq!(live.look(0, 0).running.len(), MAX_RUNNING);
        entries[0].planned("gpt-4o", 100, 90);
        let look = live.look(0, 0);
        let first = &look.running[0];
        assert_eq!(first.model.as_deref(), Some("gpt-4o"));
        assert_eq!((first.received_tokens, first.sent_tokens), (Some(100), Some(90)));
        entries.truncate(2);
        assert_eq!(live.look(0, 0).running.len(), 2);
        entries.clear();
        assert!(live.state.lock().running.is_empty());
    }
}
