//! Newest request of each recent conversation, for the inspector: as weir plans it, with the model of its
//! route and all that weir adds before a plan. In memory only, bounded, and empty unless the operator asks
//! for it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;

use crate::proxy::admit::caller::Caller;
use crate::proxy::admit::class::RequestClass;
use weir_engine::wire::Protocol;
use weir_store::ledger::Attribution;
use weir_store::{Tenant, now_ms};

/// Maximum number of conversations.
const MAX_CONVERSATIONS: usize = 64;
/// Maximum bytes of all requests together.
const MAX_BYTES: usize = 64 << 20;
/// Maximum bytes of a request; larger ones are not kept.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Maximum length of a model's name as shown: callers choose it.
const MAX_MODEL_CHARACTERS: usize = 200;

/// Recent conversations, the newest last. Off until [`Self::turn`] says otherwise.
#[derive(Debug, Default)]
pub struct RecentConversations {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_on: bool,
    /// Number of the latest conversation that was added.
    added: u64,
    bytes: usize,
    conversations: VecDeque<Conversation>,
}

#[derive(Debug)]
struct Conversation {
    tenant: Tenant,
    body: Bytes,
    row: RecentConversation,
}

/// A recent conversation.
#[derive(Debug, Clone, Serialize)]
pub struct RecentConversation {
    /// Number of the conversation, for as long as it is kept.
    pub id: u64,
    pub conversation: String,
    pub agent: Option<String>,
    pub team: Option<String>,
    pub key: Option<String>,
    pub model: String,
    pub protocol: &'static str,
    pub bytes: usize,
    /// Policy that it is planned by, and its limit on the prompt.
    pub policy: String,
    pub limit_tokens: u64,
    pub updated_ms: u64,
}

/// Origin of a request that is kept.
#[derive(Debug)]
pub struct Origin<'a> {
    pub caller: &'a Caller,
    pub attribution: &'a Attribution,
    pub model: &'a str,
    pub protocol: Protocol,
    pub policy: &'a str,
    pub limit_tokens: u64,
}

impl RecentConversations {
    /// Keeps a request in place of the earlier one of its conversation. Requests of an agent's own
    /// work, such as titles, and those without a conversation are left out.
    pub fn keep(&self, origin: &Origin<'_>, body: &Bytes) {
        let Attribution { conversation, agent, class, .. } = origin.attribution;
        let Some(conversation) = conversation else { return };
        let class = class.as_deref().and_then(RequestClass::from_name);
        let is_side = matches!(class, Some(RequestClass::Compaction | RequestClass::Auxiliary));
        if is_side || body.len() > MAX_REQUEST_BYTES {
            return;
        }
        let tenant = origin.caller.tenant;
        let key = origin.caller.key.as_deref();
        let mut state = self.state();
        // Requests in flight when it was turned off end later.
        if !state.is_on {
            return;
        }
        let same = |own: &Conversation| {
            own.tenant == tenant && own.row.conversation == *conversation && own.row.agent == *agent
        };
        let place = state.conversations.iter().position(same);
        let before = place.and_then(|place| state.conversations.remove(place));
        let id = match &before {
            Some(before) => before.row.id,
            None => state.added + 1,
        };
        state.added = state.added.max(id);
        state.bytes -= before.as_ref().map_or(0, |before| before.body.len());
        state.bytes += body.len();
        state.conversations.push_back(Conversation {
            tenant,
            body: body.clone(),
            row: RecentConversation {
                id,
                conversation: conversation.clone(),
                agent: agent.clone(),
                team: key.map(|key| key.team.clone()),
                key: key.map(|key| key.id.clone()),
                model: origin.model.chars().take(MAX_MODEL_CHARACTERS).collect(),
                protocol: origin.protocol.name(),
                bytes: body.len(),
                policy: origin.policy.to_owned(),
                limit_tokens: origin.limit_tokens,
                updated_ms: now_ms(),
            },
        });
        while state.conversations.len() > MAX_CONVERSATIONS || state.bytes > MAX_BYTES {
            let Some(oldest) = state.conversations.pop_front() else { break };
            state.bytes -= oldest.body.len();
        }
    }

    /// Lists the conversations, the newest first.
    pub fn list(&self) -> Vec<RecentConversation> {
        self.state().conversations.iter().rev().map(|own| own.row.clone()).collect()
    }

    /// Returns a conversation's newest request.
    pub fn find(&self, id: u64) -> Option<(RecentConversation, Bytes)> {
        let state = self.state();
        let found = state.conversations.iter().find(|own| own.row.id == id)?;
        Some((found.row.clone(), found.body.clone()))
    }

    /// Turns the list on, or off: then all conversations are forgotten, and none is kept.
    pub fn turn(&self, is_on: bool) {
        let mut state = self.state();
        if is_on {
            state.is_on = true;
        } else {
            *state = State { added: state.added, ..State::default() };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(recent: &RecentConversations, tenant: u8, name: &str, body: &Bytes) {
        let attribution = Attribution { conversation: Some(name.into()), ..Attribution::default() };
        let origin = Origin {
            caller: &Caller::new(Tenant([tenant; 16]), None),
            attribution: &attribution,
            model: "gpt-4o",
            protocol: Protocol::default(),
            policy: "default",
            limit_tokens: 1000,
        };
        recent.keep(&origin, body);
    }

    #[test]
    fn a_conversation_has_its_newest_request() {
        let recent = RecentConversations::default();
        keep(&recent, 1, "unasked", &Bytes::from_static(b"none"));
        assert!(recent.list().is_empty());
        recent.turn(true);
        keep(&recent, 1, "a", &Bytes::from_static(b"one"));
        keep(&recent, 1, "b", &Bytes::from_static(b"two"));
        keep(&recent, 1, "a", &Bytes::from_static(b"three"));
        keep(&recent, 2, "a", &Bytes::from_static(b"of another"));
        let names: Vec<_> = recent.list().iter().map(|own| (own.id, own.bytes)).collect();
        assert_eq!(names, [(3, 10), (1, 5), (2, 3)]);
        assert_eq!(recent.find(1).map(|(_, body)| body), Some(Bytes::from_static(b"three")));
        assert!(recent.find(4).is_none());
        recent.turn(true);
        assert_eq!(recent.list().len(), 3, "it is on already");
        recent.turn(false);
        assert!(recent.list().is_empty());
        keep(&recent, 1, "in flight", &Bytes::from_static(b"late"));
        recent.turn(true);
        assert!(recent.list().is_empty(), "a request that ended meanwhile");
        keep(&recent, 1, "a", &Bytes::from_static(b"one"));
        assert_eq!(recent.list()[0].id, 4);
    }

    #[test]
    fn numbers_and_bytes_are_bounded() {
        let recent = RecentConversations::default();
        recent.turn(true);
        for number in 0..100 {
            keep(&recent, 1, &number.to_string(), &Bytes::from_static(b"text"));
        }
        assert_eq!(recent.list().len(), MAX_CONVERSATIONS);
        let large = Bytes::from(vec![0; MAX_REQUEST_BYTES]);
        for number in 0..20 {
            keep(&recent, 1, &number.to_string(), &large);
        }
        let sum: usize = recent.list().iter().map(|own| own.bytes).sum();
        assert_eq!(sum, MAX_BYTES);
        keep(&recent, 1, "larger", &Bytes::from(vec![0; MAX_REQUEST_BYTES + 1]));
        assert!(recent.list().iter().all(|own| own.conversation != "larger"));
    }
}
