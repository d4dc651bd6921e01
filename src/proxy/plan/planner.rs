//! Planner: from a body to the bytes to send, through counts, compaction and splice, with caches
//! that save repeated work. The caches never change a result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::draft::{self, Draft, Drafted, Given, INLINE_BYTES, LONG_BODY_BYTES, Step, read_body};
use super::effort::Effort;
use super::planned::{Job, Planned};
use super::prefix_cache::{Looked, SharedPrefix};
use super::shared::{PlanState, Shared};
use crate::config::{Config, Mode};
use crate::proxy::admit::request::{INLINE_BODY_BYTES, RequestOptions};
use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use crate::proxy::logged::shown;
use crate::proxy::metrics::{Metrics, Queue};
use crate::proxy::summaries::{Summariser, WaitMode};
use crate::proxy::upstreams::routes::{Routes, UpstreamKnowledge};
use weir_engine::wire::{Protocol, Request};
use weir_store::Tenant;

/// Plans requests for all tenants.
pub struct Planner {
    shared: Arc<Shared>,
    summariser: Option<Arc<dyn Summariser>>,
    metrics: Arc<Metrics>,
}

/// Parts of a proxy that its planner uses. The default is for plans that are only examined: no
/// learned values, no summaries, and caches of its own.
#[derive(Default)]
pub struct PlannerParts {
    pub state: Option<Arc<PlanState>>,
    pub routes: Option<Arc<Routes>>,
    pub summaries: Option<Arc<dyn Summariser>>,
    pub metrics: Arc<Metrics>,
}

/// Work that is done when a job continues on another thread.
enum PartialPlan {
    Nothing,
    /// Its body was looked up in the prefix cache.
    Looked(Option<Box<Looked>>),
    /// Its limits were found.
    Drafted(Box<Draft>),
}

/// Result of the work on the request's own task.
enum Start {
    Planned(Box<Planned>),
    /// The rest takes longer than that task may.
    Long(PartialPlan),
}

impl Planner {
    /// Returns the name of the policy that a request for this model is planned by.
    pub fn policy_name(&self, job: &Job, model: &str) -> String {
        let config = &self.shared.config;
        let route = job.route.as_ref().unwrap_or_else(|| self.shared.routes.unmatched());
        let settings = config.settings(config.models.find(model).name);
        draft::policy_name(config, job, route, &settings).to_owned()
    }

    /// Creates a planner under a configuration, with the parts of the proxy that it serves.
    pub fn new(config: Arc<Config>, parts: PlannerParts) -> Self {
        let PlannerParts { state, routes, summaries: summariser, metrics } = parts;
        let state = state.unwrap_or_else(|| Arc::new(PlanState::new(&config.cache, None)));
        let routes = routes.unwrap_or_else(|| {
            let nothing = |name: &str| Arc::new(UpstreamKnowledge::nothing(name, &config));
            Arc::new(Routes::new(Arc::clone(&config), nothing))
        });
        let summaries = summariser.as_ref().map(|own| Arc::clone(own.lookup()));
        let shared = Arc::new(Shared { config, summaries, routes, state });
        Self { shared, summariser, metrics }
    }

    /// Plans `body`. `path_model` is the model named by the path.
    pub async fn plan(
        &self,
        tenant: Tenant,
        protocol: Protocol,
        body: Bytes,
        path_model: Option<&str>,
        options: RequestOptions,
    ) -> Proxied<Planned> {
        let path_model = path_model.map(str::to_owned);
        self.plan_job(&Job { path_model, ..Job::new(tenant, protocol, body, options) }).await
    }

    /// Plans a job, without the recall tool if it does not fit with it.
    pub(crate) async fn plan_fitting(&self, job: &mut Job) -> Proxied<Planned> {
        let planned = self.plan_job(job).await;
        let is_too_long =
            planned.as_ref().is_err_and(|error| error.kind == ErrorKind::ContextLengthExceeded);
        match is_too_long && job.leave_out_recall() {
            true => self.plan_job(job).await,
            false => planned,
        }
    }

    /// Plans a job. If compactions wait for their summaries, these are made on behalf of its
    /// caller.
    pub async fn plan_job(&self, job: &Job) -> Proxied<Planned> {
        let mut job = Job { wait_mode: self.wait_mode(job), ..job.clone() };
        let mut begun = match start(&self.shared, &job)? {
            Start::Planned(planned) => return Ok(*planned),
            Start::Long(begun) => begun,
        };
        loop {
            let attempt = self.offloaded(job.clone(), |shared, job| finish(shared, &job, begun));
            let wanted = match attempt.await? {
                Step::Done(drafted) => return drafted.planned,
                Step::Waits(wanted) => wanted,
                Step::Long | Step::Again => None,
            };
            begun = PartialPlan::Nothing;
            // Summaries that are missing after that stay so.
            job.wait_mode = WaitMode::Settle;
            let (Some(summariser), Some(requester), Some(wanted)) =
                (&self.summariser, &job.requester, wanted)
            else {
                continue;
            };
            // Nothing is spent on a model that the caller may not use.
            let (routes, asked) = (&self.shared.config.routes, job.alias_of.as_deref());
            requester.caller.check_model(asked.unwrap_or(&wanted.model), routes)?;
            requester.caller.check_conversation(&job.body, routes)?;
            let (summariser, by) = (Arc::clone(summariser), Arc::clone(requester));
            summariser.wait(*wanted, job.body.clone(), by).await;
        }
    }

    /// Records the decisions that a plan begins, before its request is sent, and returns whether it
    /// must be planned again by those of another process.
    pub(crate) async fn settle(&self, planned: &mut Planned) -> bool {
        match planned.begun.take() {
            Some(begun) => self.shared.state.decisions.settle(begun).await,
            None => false,
        }
    }

    /// Determines this request's wait mode if no summary record exists yet.
    fn wait_mode(&self, job: &Job) -> WaitMode {
        let is_observed = self.shared.config.context.mode == Mode::Observe;
        match &self.shared.summaries {
            Some(summaries) if !is_observed && !job.options.bypass && job.requester.is_some() => {
                summaries.wait_mode()
            }
            _ => WaitMode::LookOnly,
        }
    }

    /// Returns the routes of requests.
    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.shared.routes
    }

    /// Runs `work` off the async threads, once a core is free for it.
    pub(super) async fn offloaded<T: Send + 'static>(
        &self,
        job: Job,
        work: impl FnOnce(&Shared, Job) -> Proxied<T> + Send + 'static,
    ) -> Proxied<T> {
        let queued = Instant::now();
        let place = Arc::clone(&self.shared.state.heavy).acquire_owned().await;
        self.metrics.waited(Queue::Planner, queued.elapsed());
        let shared = Arc::clone(&self.shared);
        let (effort, _left) = Effort::begin();
        let done = tokio::task::spawn_blocking(move || {
            // The work itself releases its permit, a moment after its caller has left.
            let _place = place;
            let effort = Some(effort.for_body(job.body.len()));
            work(&shared, Job { effort, ..job })
        })
        .await;
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ProxyError::new(ErrorKind::Internal, "planning did not finish")),
        }
    }
}

/// Plans a job if that is short work. What is long is known before it starts, and continues where this
/// ends.
fn start(shared: &Shared, job: &Job) -> Proxied<Start> {
    if job.body.len() > INLINE_BODY_BYTES {
        return Ok(Start::Long(PartialPlan::Nothing));
    }
    let looked = look(shared, job);
    let is_unknown = looked.as_ref().is_none_or(|looked| looked.shared.is_none());
    if is_unknown && job.body.len() >= LONG_BODY_BYTES {
        // A long, unknown conversation: there is much to count.
        return Ok(Start::Long(PartialPlan::Looked(looked.map(Box::new))));
    }
    let (mut draft, request) = read(shared, job, looked)?;
    let given = Given { shared, job, request: &request };
    let step = guarded(&mut draft, given, |draft| {
        let parsed = draft.count(given, INLINE_BYTES)?;
        Ok(match draft.is_long_work(given) {
            true => Step::Long,
            false => draft.plan(given, parsed),
        })
    });
    let step = step?;
    if matches!(step, Step::Again) {
        draft.begin_again();
    }
    match step {
        Step::Done(drafted) => drafted.planned.map(|planned| Start::Planned(Box::new(planned))),
        Step::Long | Step::Again | Step::Waits(_) => {
            Ok(Start::Long(PartialPlan::Drafted(Box::new(draft.leave(&request)))))
        }
    }
}

/// Plans a job, however long it takes, from where [`start`] ended.
fn finish(shared: &Shared, job: &Job, begun: PartialPlan) -> Proxied<Step> {
    let (mut draft, request) = match begun {
        PartialPlan::Nothing => read(shared, job, look(shared, job))?,
        PartialPlan::Looked(looked) => read(shared, job, looked.map(|looked| *looked))?,
        PartialPlan::Drafted(draft) => {
            let request = draft.read_again(shared, job)?;
            (*draft, request)
        }
    };
    plan(&mut draft, Given { shared, job, request: &request })
}

/// Looks a job's body up in the prefix cache; `None` for a short one.
pub(super) fn look(shared: &Shared, job: &Job) -> Option<Looked> {
    shared.state.cache.prefixes.look(job.tenant, job.protocol, &job.body)
}

/// Reads a job's body after its known beginning, and finds its limits.
pub(super) fn read<'a>(
    shared: &Shared,
    job: &'a Job,
    looked: Option<Looked>,
) -> Proxied<(Draft, Request<'a>)> {
    let read = || {
        let known = looked.as_ref().and_then(|looked| looked.shared.as_ref());
        let request = read_body(shared, job, known.map(SharedPrefix::prefix))?;
        Ok((Draft::new(shared, job, &request, looked), request))
    };
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        tracing::error!(target: "weir::fault", "reading a body failed");
        let message = "the body could not be read because of a bug in weir";
        Err(ProxyError::new(ErrorKind::Internal, message))
    })
}
/// Counts a job's request and plans it, however long it takes.
pub(super) fn plan(draft: &mut Draft, given: Given<'_>) -> Proxied<Step> {
    guarded(draft, given, |draft| {
        loop {
            let parsed = draft.count(given, usize::MAX)?;
            match draft.plan(given, parsed) {
                Step::Again => draft.begin_again(),
                step => return Ok(step),
            }
        }
    })
}

/// Takes a step; after a panic inside, forwards the original if that fits.
fn guarded(
    draft: &mut Draft,
    given: Given<'_>,
    step: impl FnOnce(&mut Draft) -> Proxied<Step>,
) -> Proxied<Step> {
    if let Ok(step) = catch_unwind(AssertUnwindSafe(|| step(draft))) {
        return step;
    }
    tracing::error!(target: "weir::fault", model = %shown(&draft.model), "compaction failed");
    let planned = catch_unwind(AssertUnwindSafe(|| draft.after_fault(given.job, given.request)));
    let planned = planned.ok().flatten().ok_or_else(|| {
        let message = "compaction failed, and the request does not fit without it";
        ProxyError::new(ErrorKind::Internal, message)
    });
    Ok(Step::Done(Box::new(Drafted { planned, plan: None })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::compact::policy::Goal;

    fn shared() -> Arc<Shared> {
        Planner::new(Arc::default(), PlannerParts::default()).shared
    }

    fn job(body: String, max_input_tokens: Option<u64>) -> Job {
        let options = RequestOptions { max_input_tokens, ..RequestOptions::default() };
        Job::new(Tenant([0; 16]), Protocol::Chat, body.into(), options)
    }

    fn body(words: usize) -> String {
        let text = "word ".repeat(words);
        format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{text}"}}]}}"#)
    }

    fn planned(shared: &Shared, job: &Job) -> Proxied<Planned> {
        match finish(shared, job, PartialPlan::Nothing)? {
            Step::Done(drafted) => drafted.planned,
            Step::Long | Step::Again | Step::Waits(_) => panic!("it waits for nothing"),
        }
    }

    fn faulty(max_input_tokens: Option<u64>, words: usize) -> Proxied<Planned> {
        let (shared, job) = (shared(), job(body(words), max_input_tokens));
        let (mut draft, request) = read(&shared, &job, None)?;
        let given = Given { shared: &shared, job: &job, request: &request };
        match guarded(&mut draft, given, |_| panic!("a fault on purpose"))? {
            Step::Done(drafted) => drafted.planned,
            Step::Long | Step::Again | Step::Waits(_) => panic!("it waits for nothing"),
        }
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
        let Ok(alone) = planned(&shared(), &job) else { panic!("it fits") };
        let mut state = PlanState::new(&Config::default().cache, None);
        state.heavy = Arc::new(tokio::sync::Semaphore::new(3));
        let parts = PlannerParts { state: Some(Arc::new(state)), ..PlannerParts::default() };
        let several = Planner::new(Arc::default(), parts).shared;
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let _entered = runtime.enter();
        let Ok(planned) = planned(&several, &job) else { panic!("it fits") };
        assert!(planned.compactions > 0);
        assert_eq!(planned, alone);
    }

    /// Returns the conversation of an agent, which calls a tool in every other message. In Messages the
    /// last one has a mark of the provider's cache.
    fn agent(protocol: Protocol, turns: usize) -> String {
        let output = |turn: usize| format!("turn_{turn} says \\\"é\\\" \\n").repeat(100);
        let mut list = vec![r#"{"role":"user","content":"Fix it."}"#.to_owned()];
        for turn in 0..turns {
            let (id, output) = (format!("call_{turn}"), output(turn));
            let text = format!("I read part {turn}.");
            let mark =
                if turn + 1 == turns { r#","cache_control":{"type":"ephemeral"}"# } else { "" };
            list.extend(match protocol {
                Protocol::Chat => vec![
                    format!(r#"{{"role":"assistant","content":"{text}","tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"read","arguments":"{{}}"}}}}]}}"#),
                    format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"{output}"}}"#),
                ],
                Protocol::Responses => vec![
                    format!(r#"{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{text}"}}]}}"#),
                    format!(r#"{{"type":"function_call","call_id":"{id}","name":"read","arguments":"{{}}"}}"#),
                    format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"{output}"}}"#),
                ],
                Protocol::Messages => vec![
                    format!(r#"{{"role":"assistant","content":[{{"type":"text","text":"{text}"}},{{"type":"tool_use","id":"{id}","name":"read","input":{{}}}}]}}"#),
                    format!(r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"{output}"}},{{"type":"text","text":"Go on."{mark}}}]}}"#),
                ],
            });
        }
        let (name, outside) = match protocol {
            Protocol::Chat => ("messages", ""),
            Protocol::Responses => ("input", r#","instructions":"Be brief.""#),
            Protocol::Messages => ("messages", r#","system":"Be brief.","max_tokens":99"#),
        };
        format!(r#"{{"model":"gpt-4o","{name}":[{}]{outside}}}"#, list.join(","))
    }

    #[test]
    fn what_is_read_on_is_planned_as_what_is_read_from_the_start() {
        for protocol in [Protocol::Chat, Protocol::Responses, Protocol::Messages] {
            let shared = shared();
            let mut taken_up = 0;
            for turns in 1..60 {
                let job = Job { protocol, ..job(agent(protocol, turns), Some(20_000)) };
                let shares = |looked: Looked| looked.shared.is_some();
                taken_up += usize::from(look(&shared, &job).is_some_and(shares));
                let Ok(on) = planned(&shared, &job) else { panic!("it fits") };
                let Ok(whole) = planned(&self::shared(), &job) else { panic!("it fits") };
                assert_eq!((on.body, on.action), (whole.body, whole.action), "{turns} turns");
                assert_eq!(on.received_tokens, whole.received_tokens, "{turns} turns");
                on.read_ahead.run();
            }
            assert!(taken_up > 45, "{taken_up} were taken up in {protocol:?}");
        }
    }

    /// Planner of an instance with this store and limit.
    fn instance(store: &weir_store::Store, goal: usize) -> Planner {
        let mut config = Config::default();
        config.context.policy.zones.goal = Goal::WORDS[goal].1;
        let state = PlanState::new(&config.cache, Some(store.clone()));
        let parts = PlannerParts { state: Some(Arc::new(state)), ..PlannerParts::default() };
        Planner::new(Arc::new(config), parts)
    }

    /// Plans a request of so many messages, as it is sent `minutes_ago`.
    async fn sent(planner: &Planner, messages: usize, minutes_ago: u64) -> Planned {
        let job = job(conversation(messages), None);
        let mut planned = planner.plan_job(&job).await.expect("it fits");
        assert!(!planner.settle(&mut planned).await);
        let ago = std::time::Duration::from_secs(60 * minutes_ago);
        planned.progress.as_ref().expect("it is one").note(Instant::now() - ago);
        planned
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_pause_that_the_cache_does_not_outlive_compacts_for_all_instances() {
        const ECONOMIC: usize = 2;
        const COLD: usize = 3;
        for (goal, minutes_ago, is_compacted) in
            [(COLD, 12, true), (COLD, 10, false), (ECONOMIC, 12, false)]
        {
            let store = weir_store::Store::in_memory().expect("there is memory");
            let [one, other] = [(); 2].map(|()| instance(&store, goal));
            assert_eq!(sent(&one, 25, minutes_ago).await.compactions, 0);
            let cold = sent(&one, 27, 0).await;
            assert_eq!(cold.compactions, u32::from(is_compacted), "{minutes_ago} minutes");
            assert_eq!(cold.compaction.is_new, is_compacted);
            let [next, elsewhere] = [sent(&one, 29, 0).await, sent(&other, 29, 0).await];
            assert_eq!(next.compactions, u32::from(is_compacted));
            assert_eq!(next.body, elsewhere.body);
            assert!(!next.compaction.is_new && !next.is_compacted_here);
            let Some(body) = cold.body.filter(|_| is_compacted) else { continue };
            let end = body.iter().rposition(|byte| *byte == b']').expect("a list");
            assert!(next.body.expect("it is shorter, too").starts_with(&body[..end]));
            // What branched off before is sent as it was.
            assert_eq!(sent(&one, 25, 0).await.compactions, 0);
        }
    }

    /// Returns the numbers of messages whose readings plans have found, and of those that they have read.
    fn readings(shared: &Shared) -> (u64, u64) {
        let figures = shared.state.figures().find(|figures| figures.name == "readings");
        figures.and_then(|figures| figures.lookups).expect("they are counted")
    }

    #[test]
    fn a_compaction_finds_what_was_read_before_it() {
        for protocol in [Protocol::Chat, Protocol::Responses, Protocol::Messages] {
            let (reads_ahead, alone) = (shared(), shared());
            let (mut compactions, mut messages, mut before) = (0, 0, 0);
            for turns in 1..80 {
                let job = Job { protocol, ..job(agent(protocol, turns), Some(20_000)) };
                let plans = [&reads_ahead, &alone].map(|shared| planned(shared, &job));
                let [Ok(ahead), Ok(plain)] = plans else { panic!("it fits") };
                assert_eq!(ahead, plain, "{turns} turns in {protocol:?}");
                if ahead.compactions > compactions {
                    // New messages are read as they are counted.
                    messages += before;
                }
                (compactions, before) = (ahead.compactions, u64::from(ahead.messages));
                ahead.read_ahead.run();
            }
            assert!(compactions > 2, "{compactions}");
            // Each asks for all messages, besides some of its own request.
            let asked = messages..=messages + 3 * u64::from(compactions);
            let (found, read) = readings(&reads_ahead);
            assert!(asked.contains(&(found + read)), "{found} and {read} of {asked:?}");
            // Only messages newer than the last 16 KB that were read ahead.
            assert!(read <= 25 * u64::from(compactions), "{read} of {messages} in {protocol:?}");
            // Without it, the first compaction has read what the next ones find.
            let (found, read) = readings(&alone);
            assert!(asked.contains(&(found + read)), "{found} and {read} of {asked:?}");
            assert!(found > messages / 2, "{found} of {messages} in {protocol:?}");
        }
    }

    #[test]
    fn branches_of_a_conversation_do_not_replace_each_others_readings() {
        let shared = shared();
        let mut last = 0;
        for turns in 10..80 {
            let own = agent(Protocol::Chat, turns);
            let other = (10..turns).fold(own.clone(), |body, turn| {
                body.replace(&format!("turn_{turn} says"), &format!("it_{turn} is"))
            });
            for body in [own, other] {
                let Ok(planned) = planned(&shared, &job(body, Some(20_000))) else {
                    panic!("it fits")
                };
                last = u64::from(planned.messages);
                planned.read_ahead.run();
            }
        }
        let (found, read) = readings(&shared);
        // Each compaction reads messages newer than the last 16 KB that were read ahead, and finds the rest.
        assert!(read < last, "{read} read, of two times {last}");
        assert!(found > 2 * last, "{found} found");
    }

    #[tokio::test]
    async fn reading_ahead_needs_a_free_core() {
        let shared = shared();
        // Past half of the way to the limit.
        let jobs = [agent(Protocol::Chat, 20), agent(Protocol::Chat, 60)];
        let [near, full] = jobs.map(|body| job(body, Some(30_000)));
        let plan = |job: &Job| {
            let Ok(planned) = planned(&shared, job) else { panic!("it fits") };
            planned
        };
        let all = shared.state.heavy.available_permits();
        let heavy = Arc::clone(&shared.state.heavy);
        let all = heavy.acquire_many_owned(u32::try_from(all).expect("few")).await.expect("open");
        let start = || plan(&near).read_ahead.start().expect("there is something to read");
        start().await.expect("no fault");
        drop(all);
        // Nothing was read, so it is tried again.
        start().await.expect("no fault");
        assert!(plan(&near).read_ahead.start().is_none(), "all is read");
        assert!(plan(&full).compactions > 0);
        let (found, read) = readings(&shared);
        assert!(found >= 41, "{found} found, {read} read");
    }

    #[test]
    fn side_requests_leave_what_is_at_hand_of_a_conversation() {
        let shared = shared();
        let mut compacted = 0;
        for messages in (41..90).step_by(2) {
            let body = conversation(messages);
            let job = self::job(body.clone(), Some(20_000));
            let looked = look(&shared, &job);
            let read_before = looked.as_ref().and_then(|looked| looked.shared.as_ref());
            let read_before = read_before.map(|known| known.prefix().messages());
            let (mut draft, request) =
                read(&shared, &job, looked).unwrap_or_else(|_| panic!("readable"));
            let counted =
                draft.count(Given { shared: &shared, job: &job, request: &request }, usize::MAX);
            assert!(counted.is_ok());
            let expected = (messages > 41).then_some(messages - 2);
            assert_eq!((read_before, draft.remembered_messages()), (expected, expected));
            let Ok(own) = planned(&shared, &job) else { panic!("it fits") };
            let Ok(fresh) = planned(&self::shared(), &job) else { panic!("it fits") };
            assert_eq!((own.body, own.action), (fresh.body, fresh.action), "{messages} messages");
            compacted += u32::from(own.compactions > 0);
            // One continues the conversation otherwise, one ends otherwise, one has nothing of it.
            let longer =
                conversation(messages + 2).replace(&format!("turn_{}", messages + 1), "a title");
            let other = body.replace(&format!("turn_{}", messages - 1), "a topic");
            for side in [longer, other, self::body(3)] {
                let Ok(_) = planned(&shared, &self::job(side, Some(20_000))) else {
                    panic!("it fits")
                };
            }
        }
        assert!(compacted > 5, "{compacted}");
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
        let Err(error) = faulty(Some(1000), 1100) else { panic!("the original does not fit") };
        assert_eq!(error.kind, ErrorKind::Internal);
    }
}
