//! From a body to what is sent in its place: counts, fold and splice, with the caches that spare
//! doing it again. The caches never change a result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::draft::Draft;
use super::metrics::{Metrics, Queue};
use super::planned::Folded;
pub use super::planned::{Asked, Job, Planned};
use super::shared::Shared;
use super::summaries::{Patience, Spans, Summaries, Wanted};
use super::ways::Ways;
use super::{ErrorKind, ProxyError, Tenant};
use crate::config::{Config, Mode};
use crate::wire::Protocol;

/// As many bytes of messages not seen before as are counted on the request's own task.
pub(super) const INLINE_BYTES: usize = 16 * 1024;
/// Bodies above this are not even parsed there.
const INLINE_BODY_BYTES: usize = 2 * 1024 * 1024;

/// Plans requests for all tenants.
pub struct Planner {
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
}

/// Whether a job may take its time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    Inline,
    Unhurried,
}

/// Why a job has no plan yet.
pub(super) enum Stop {
    /// It takes longer than the request's own task may.
    Heavy,
    /// It is to be planned again, when the summary of its last cut is there if that is missing.
    Waits(Option<Box<Wanted>>),
    Refused(ProxyError),
}

impl From<ProxyError> for Stop {
    fn from(error: ProxyError) -> Self {
        Self::Refused(error)
    }
}

impl Planner {
    /// A planner that has learned nothing of any upstream, and has no model to sum up with.
    pub fn new(config: Arc<Config>) -> Self {
        let ways = Arc::new(Ways::untaught(&config));
        Self::with(config, ways, None, Arc::default())
    }

    /// A planner that goes by what upstreams have taught, and by what stands for what cuts took.
    pub(super) fn with(
        config: Arc<Config>,
        ways: Arc<Ways>,
        summaries: Option<Arc<Summaries>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { shared: Arc::new(Shared::new(config, ways, summaries)), metrics }
    }

    /// The same by another configuration: what is remembered goes on.
    pub(super) fn renewed(
        &self,
        config: Arc<Config>,
        ways: Arc<Ways>,
        summaries: Option<Arc<Summaries>>,
    ) -> Self {
        Self {
            shared: Arc::new(self.shared.renewed(config, ways, summaries)),
            metrics: Arc::clone(&self.metrics),
        }
    }

    /// Decides what to send of `body`. `path_model` is the model named by the path.
    pub async fn plan(
        &self,
        tenant: Tenant,
        protocol: Protocol,
        body: Bytes,
        path_model: Option<&str>,
        asked: Asked,
    ) -> Result<Planned, ProxyError> {
        let path_model = path_model.map(str::to_owned);
        self.plan_job(&Job { path_model, ..Job::new(tenant, protocol, body, asked) }).await
    }

    /// Decides what to send in place of a request. Where cuts wait for their summaries, these are
    /// made on behalf of its caller.
    pub async fn plan_job(&self, job: &Job) -> Result<Planned, ProxyError> {
        let mut job = Job { patience: self.patience(job), ..job.clone() };
        if job.body.len() <= INLINE_BODY_BYTES {
            match guarded(&self.shared, &job, Pace::Inline) {
                Ok(planned) => return Ok(planned),
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Heavy | Stop::Waits(_)) => {}
            }
        }
        loop {
            let attempt = self.unhurried(job.clone(), |shared, job| {
                match guarded(shared, &job, Pace::Unhurried) {
                    Err(Stop::Waits(wanted)) => Ok(Err(wanted)),
                    done => done.map(Ok),
                }
            });
            let wanted = match attempt.await? {
                Ok(planned) => return Ok(planned),
                Err(wanted) => wanted,
            };
            // What is missing when that is over stays so.
            job.patience = Patience::Settles;
            let (Some(summaries), Some(behalf), Some(wanted)) =
                (&self.shared.summaries, &job.behalf, wanted)
            else {
                continue;
            };
            // Nothing is spent on what the caller may not ask for.
            let (routes, asked) = (&self.shared.config.routes, job.alias_of.as_deref());
            behalf.caller.check_model(asked.unwrap_or(&wanted.model), routes)?;
            behalf.caller.check_conversation(&job.body, routes)?;
            let deadline = Instant::now() + summaries.wait_timeout();
            summaries.wait(*wanted, &job.body, behalf, deadline).await;
        }
    }

    /// What a request that asks for this may do where no summary stands yet.
    fn patience(&self, job: &Job) -> Patience {
        let is_observed = self.shared.config.context.mode == Mode::Observe;
        match &self.shared.summaries {
            Some(summaries) if !is_observed && !job.asked.bypass && job.behalf.is_some() => {
                summaries.patience()
            }
            _ => Patience::Looks,
        }
    }

    /// The ways that requests may go.
    pub(super) fn ways(&self) -> &Arc<Ways> {
        &self.shared.ways
    }

    /// Does `work` off the async threads, when a core is free for it.
    pub(super) async fn unhurried<T: Send + 'static>(
        &self,
        job: Job,
        work: impl FnOnce(&Shared, Job) -> Result<T, Stop> + Send + 'static,
    ) -> Result<T, ProxyError> {
        let queued = Instant::now();
        let place = Arc::clone(&self.shared.heavy).acquire_owned().await;
        self.metrics.waited(Queue::Planner, queued.elapsed());
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || {
            // The place is given back by the work itself: a caller that leaves does not end it.
            let _place = place;
            work(&shared, job)
        })
        .await;
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(Stop::Refused(error))) => Err(error),
            _ => Err(ProxyError::new(ErrorKind::Internal, "planning did not come to an end")),
        }
    }
}

/// Plans a job; a fault inside forwards the original where that fits.
pub(super) fn guarded(shared: &Shared, job: &Job, pace: Pace) -> Result<Planned, Stop> {
    guarded_by(shared, job, pace, |draft, spans| draft.fold(spans))
}

/// [`guarded`], with the step that may fail as an argument.
fn guarded_by(
    shared: &Shared,
    job: &Job,
    pace: Pace,
    fold: impl FnOnce(&Draft<'_>, Option<&Spans<'_>>) -> Result<Folded, Stop>,
) -> Result<Planned, Stop> {
    let Ok(draft) = catch_unwind(AssertUnwindSafe(|| Draft::read(shared, job, pace))) else {
        tracing::error!(target: "weir::fault", "reading a body failed");
        let message = "the body could not be read, through a fault of weir's";
        return Err(ProxyError::new(ErrorKind::Internal, message).into());
    };
    let draft = draft?;
    match catch_unwind(AssertUnwindSafe(|| draft.fold_and_plan(fold))) {
        Ok(planned) => planned,
        Err(_) => draft.forward_after_fault(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        let config = Arc::new(Config::default());
        let ways = Arc::new(Ways::untaught(&config));
        Shared::new(config, ways, None)
    }

    fn job(body: String, max_input_tokens: Option<u64>) -> Job {
        let asked = Asked { max_input_tokens, ..Asked::default() };
        Job::new(Tenant([0; 16]), Protocol::Chat, body.into(), asked)
    }

    fn body(words: usize) -> String {
        let text = "word ".repeat(words);
        format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{text}"}}]}}"#)
    }

    fn faulty(max_input_tokens: Option<u64>, words: usize) -> Result<Planned, Stop> {
        let (shared, job) = (shared(), job(body(words), max_input_tokens));
        guarded_by(&shared, &job, Pace::Unhurried, |_, _| panic!("a fault on purpose"))
    }

    fn conversation(messages: usize) -> String {
        let turns = (0..messages).map(|number| {
            let role = if number % 2 == 0 { "user" } else { "assistant" };
            let text = format!("turn_{number} says \\\"é\\\" \\n").repeat(100);
            format!(r#"{{"role":"{role}","content":"{text}"}}"#)
        });
        let turns = turns.collect::<Vec<_>>().join(",");
        format!(r#"{{"model":"gpt-4o","messages":[{turns}],"stream":false}}"#)
    }

    #[test]
    fn several_threads_plan_what_one_does() {
        let job = job(conversation(201), Some(20_000));
        let Ok(alone) = guarded(&shared(), &job, Pace::Unhurried) else { panic!("it fits") };
        let mut several = shared();
        several.heavy = Arc::new(tokio::sync::Semaphore::new(3));
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let _entered = runtime.enter();
        let Ok(planned) = guarded(&several, &job, Pace::Unhurried) else { panic!("it fits") };
        assert!(planned.cuts > 0);
        assert_eq!(planned, alone);
    }

    #[test]
    fn what_is_read_on_is_planned_as_what_is_read_anew() {
        let shared = shared();
        let mut taken_up = 0;
        for messages in (1..80).step_by(2) {
            let job = job(conversation(messages), Some(20_000));
            let looked = shared.memory.beginnings.look(job.tenant, &job.body);
            taken_up += usize::from(looked.is_some_and(|looked| looked.known.is_some()));
            let Ok(on) = guarded(&shared, &job, Pace::Unhurried) else { panic!("it fits") };
            let Ok(anew) = guarded(&self::shared(), &job, Pace::Unhurried) else {
                panic!("it fits")
            };
            assert_eq!((on.body, on.action), (anew.body, anew.action), "{messages} messages");
            assert_eq!(on.received_tokens, anew.received_tokens, "{messages} messages");
        }
        assert!(taken_up > 10, "{taken_up} were taken up");
    }

    #[test]
    fn a_fault_forwards_the_original_where_it_fits() {
        // Once by bytes alone, once by counting.
        for (limit, words) in [(None, 10), (Some(1000), 900)] {
            let Ok(planned) = faulty(limit, words) else { panic!("the original fits") };
            assert_eq!((planned.body, planned.action.as_str()), (None, "fault"));
        }
    }

    #[test]
    fn a_fault_never_sends_what_does_not_fit() {
        let Err(Stop::Refused(error)) = faulty(Some(1000), 1100) else {
            panic!("the original does not fit")
        };
        assert_eq!(error.kind, ErrorKind::Internal);
    }
}
