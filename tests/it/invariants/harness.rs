//! Runs properties with a printed seed, and plans requests in process.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config as Proptest, RngSeed, TestCaseError, TestError, TestRunner};
use weir::config::{Config, ModelEntry};
use weir::proxy::plan::{Planned, Planner, PlannerParts, RequestOptions};
use weir::proxy::{Explained, ProxyError, Question, Tenant};
use weir_engine::tokens::Encoding;
use weir_engine::wire::Protocol;

use super::generate::{Case, Limit};
use super::judge::Body;

/// Model with a known window and no other known rule.
pub const MODEL: &str = "gpt-4o";
/// Model that refuses two user or two assistant messages in a row.
pub const STRICT_MODEL: &str = "alternating";
/// Model with a window so small that the length of its answer matters.
pub const SMALL_MODEL: &str = "small";

/// Tests `property` on values of `strategy`. The environment variables `PROPTEST_CASES` and
/// `PROPTEST_RNG_SEED` set their number and the seed.
pub fn check<S: Strategy>(
    name: &str,
    cases: u32,
    strategy: &S,
    property: impl Fn(&S::Value) -> Result<(), String>,
) where
    S::Value: std::fmt::Debug,
{
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("PROPTEST_RNG_SEED").unwrap_or_else(|| RandomState::new().hash_one(name));
    let cases = number("PROPTEST_CASES").map_or(cases, |cases| cases as u32);
    println!("{name}: {cases} cases of PROPTEST_RNG_SEED={seed}");
    let config = Proptest {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_time: 120_000,
        ..Proptest::default()
    };
    let run = TestRunner::new(config)
        .run(strategy, |value| property(&value).map_err(TestCaseError::fail));
    match run {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => {
            panic!("{name}, PROPTEST_RNG_SEED={seed}: {reason}\n{value:?}")
        }
        Err(error) => panic!("{name}, PROPTEST_RNG_SEED={seed}: {error}"),
    }
}

/// Planner with the default configuration.
pub struct Weir {
    planner: Planner,
    runtime: tokio::runtime::Runtime,
}

impl Weir {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime needs nothing but memory");
        Self { planner: Planner::new(Arc::new(config), PlannerParts::default()), runtime }
    }

    /// Plans a request of chat completions under a limit. Savings that depend on earlier requests
    /// are removed, so that plans can be compared.
    pub fn plan(&self, body: &str, limit_tokens: u64) -> Result<Planned, ProxyError> {
        self.plan_as(Protocol::Chat, body, limit_tokens)
    }

    /// Plans a request as [`Self::plan`] does.
    pub fn plan_as(
        &self,
        protocol: Protocol,
        body: &str,
        limit_tokens: u64,
    ) -> Result<Planned, ProxyError> {
        let asked =
            RequestOptions { max_input_tokens: Some(limit_tokens), ..RequestOptions::default() };
        let body = bytes::Bytes::copy_from_slice(body.as_bytes());
        let planned = self.planner.plan(Tenant([7; 16]), protocol, body, None, asked);
        let mut planned = self.runtime.block_on(planned)?;
        planned.compaction.earlier_tokens = None;
        planned.compaction.is_new = false;
        Ok(planned)
    }

    /// Explains a request under a limit.
    pub fn explain(
        &self,
        body: &str,
        limit_tokens: u64,
        question: Question,
    ) -> Result<Explained, ProxyError> {
        let asked =
            RequestOptions { max_input_tokens: Some(limit_tokens), ..RequestOptions::default() };
        let body = bytes::Bytes::copy_from_slice(body.as_bytes());
        let tenant = Tenant([7; 16]);
        let explained =
            self.planner.explain(tenant, Protocol::Chat, body, None, asked, Some(question));
        self.runtime.block_on(explained)
    }
}

/// Returns the defaults with the models of these tests.
fn config() -> Config {
    let mut config = Config::default();
    for (name, window_tokens) in [(STRICT_MODEL, 128_000), (SMALL_MODEL, 8000)] {
        config.models.insert(
            name,
            ModelEntry {
                window_tokens,
                max_input_tokens: None,
                max_output_tokens: None,
                encoding: Encoding::O200kBase,
                strict_alternation: name == STRICT_MODEL,
            },
        );
    }
    config
}

impl Case {
    /// Returns the limit in tokens.
    pub fn limit_tokens(&self) -> u64 {
        match self.limit {
            Limit::Tokens(tokens) => tokens,
            Limit::Share(permille) => {
                let body = self.transcript.body();
                let size: u64 = Body::read(&body).map_or(0, |body| body.tokens());
                (size * permille / 1000).max(1)
            }
        }
    }
}

/// Returns the steps of a plan, without the word for content that stands elsewhere.
pub fn steps(planned: &Planned) -> &str {
    planned.action.strip_suffix("+unread").unwrap_or(&planned.action)
}
