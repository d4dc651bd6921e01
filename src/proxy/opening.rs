//! What is told to the journal of a request: before it is sent, and how it ended. Decides nothing and
//! writes nothing down.

use std::sync::{Arc, Mutex, PoisonError};

use http::Method;

use super::planner::Planned;
use super::record::logged;
use super::settlement::End;
use super::{Caller, ErrorKind, ProxyError, headers};
use crate::budget::Compaction;
use crate::store::ledger::{self, KeyNames, RequestId};
use crate::upstream::{Endpoint, Outbound, Target};
use crate::wire::usage::Metered;

/// What is written down of a request before it is sent.
pub struct Opening {
    pub caller: ledger::Caller,
    pub route: String,
    pub model: String,
    /// Where it goes, if that is another upstream than conversations have.
    pub upstream: Option<String>,
    pub stream: bool,
    pub action: String,
    pub zone: &'static str,
    pub compaction: Option<Compaction>,
    pub max_output_tokens: Option<u64>,
    pub plan_ms: u64,
    /// Whether the route is one that is billed. Of others only those are kept that report usage.
    pub is_billed: bool,
}

/// How a request ended.
pub struct Ended {
    pub end: End,
    /// The word for it.
    pub outcome: &'static str,
    /// The answer's.
    pub status: Option<u16>,
    /// What the answer told.
    pub metered: Metered,
    pub first_byte_ms: Option<u64>,
    pub total_ms: Option<u64>,
}

impl Ended {
    /// A request of a process that ended before it did.
    pub fn killed() -> Self {
        Self {
            end: End::Unseen,
            outcome: "killed",
            status: None,
            metered: Metered::default(),
            first_byte_ms: None,
            total_ms: None,
        }
    }
}

impl Opening {
    /// A conversation that is sent as `planned`.
    pub fn planned(
        caller: ledger::Caller,
        target: &Target,
        planned: &Planned,
        plan_ms: u64,
    ) -> Self {
        Self {
            caller,
            route: route(target),
            model: planned.model.clone(),
            upstream: planned.upstream.as_deref().map(str::to_owned),
            stream: planned.stream,
            action: planned.action.clone(),
            zone: planned.zone.word(),
            compaction: Some(planned.compaction),
            max_output_tokens: planned.max_output_tokens,
            plan_ms,
            is_billed: true,
        }
    }

    /// A request that is passed on unread; `None` where such a request uses nothing.
    ///
    /// `model` is what its body names, empty where that was not read: then the answer tells.
    pub fn passed(
        caller: &Caller,
        outbound: &Outbound,
        model: String,
        plan_ms: u64,
    ) -> Option<Self> {
        (outbound.method == Method::POST).then(|| Self {
            caller: account(caller),
            route: route(&outbound.target),
            model,
            upstream: None,
            stream: false,
            action: match outbound.target.endpoint() {
                Endpoint::Route(route) if route.is_unread_conversation() => headers::UNREAD,
                _ => "stream",
            }
            .to_owned(),
            zone: "",
            compaction: None,
            max_output_tokens: None,
            plan_ms,
            is_billed: matches!(outbound.target.endpoint(), Endpoint::Route(_)),
        })
    }
}

/// What a request that comes at `begun_ms` is called.
pub(super) fn new_id(begun_ms: u64) -> Result<RequestId, ProxyError> {
    let random = RANDOM.lock().unwrap_or_else(PoisonError::into_inner).take();
    let random = random
        .map_err(|_| ProxyError::new(ErrorKind::Internal, "the system gives no random bytes"))?;
    Ok(RequestId::new(begun_ms, random))
}

/// How many bytes are fetched at once, so that not each request pays for a system call.
const RANDOM_BYTES: usize = 1000;

static RANDOM: Mutex<Random> = Mutex::new(Random { bytes: [0; RANDOM_BYTES], used: RANDOM_BYTES });

/// Random bytes of the system's, each given out once.
struct Random {
    bytes: [u8; RANDOM_BYTES],
    used: usize,
}

impl Random {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], getrandom::Error> {
        if self.used + N > RANDOM_BYTES {
            // Where it fails, what is there was used already.
            self.used = RANDOM_BYTES;
            getrandom::fill(&mut self.bytes)?;
            self.used = 0;
        }
        let mut taken = [0; N];
        taken.copy_from_slice(&self.bytes[self.used..self.used + N]);
        self.used += N;
        Ok(taken)
    }
}

/// Who a request is counted for.
pub(super) fn account(caller: &Caller) -> ledger::Caller {
    let key = caller.key.as_ref().map(|key| {
        Arc::new(KeyNames {
            key: key.id.clone(),
            team: key.team.clone(),
            organisation: key.organisation.clone(),
            user: key.user.clone(),
        })
    });
    ledger::Caller { tenant: caller.tenant, key }
}

/// What a path asks for, as it is shown.
fn route(target: &Target) -> String {
    match target.endpoint() {
        Endpoint::Route(route) => route.name().to_owned(),
        _ => logged(target.path().trim_start_matches('/')),
    }
}
