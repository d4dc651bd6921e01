//! Real conversations replayed turn by turn through the program to the scripted upstream.

#[path = "../../examples/replay_http/replay.rs"]
#[expect(dead_code, reason = "the command that shares it has tables and stress cases as well")]
pub mod judged;

use std::path::Path;
use std::sync::Arc;

use crate::scripted_upstream;
use judged::tally::Check;
use judged::{Budget, Plan, conversation};

#[tokio::test(flavor = "multi_thread")]
async fn real_conversations_stay_within_their_budgets() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces");
    let sample = conversation::read(&folder.join("sample.jsonl.gz")).expect("the sample is sound");
    let budgets = vec![Budget::Percent(30), Budget::Percent(50), Budget::Percent(70)];
    let due = judged::request_count(&sample, &budgets);
    let plan = Plan {
        program: env!("CARGO_BIN_EXE_weir").into(),
        settings: Vec::new(),
        budgets,
        concurrency: 4,
    };
    let outcome = judged::replay(Arc::new(sample), &plan, || {}).await.expect("the replay runs");

    let mut wrong = Vec::new();
    for found in &outcome.found {
        assert!(found.pooled.cuts > 0, "nothing is cut at {}", found.budget);
        for check in Check::ALL {
            for failure in &found.pooled.of(check).failures {
                let (id, messages) = (&failure.conversation, failure.turn);
                let (budget, title) = (found.budget, check.title());
                let reason = &failure.reason;
                wrong.push(format!("{budget}, {id}, {messages} messages: {title}: {reason}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let made: u64 = outcome.found.iter().map(|found| found.pooled.requests).sum();
    assert_eq!(made, due as u64);
}
