//! Recall for late questions: the share of answering messages that is readable in the sent request,
//! at 30 % of the conversation.

use std::collections::BTreeMap;

use super::harness::Weir;
use super::judge::Body;
use super::planted::{Dialogue, KINDS, Kind, Setting};

/// Size of the sent request, in thousandths of the conversation.
const BUDGET_PERMILLE: u64 = 300;
const SEEDS: [u64; 4] = [11, 23, 37, 59];

/// Number of messages with answers, and how many of them can be read.
#[derive(Default, Clone, Copy)]
struct Evidence {
    all: u32,
    kept: u32,
}

impl Evidence {
    fn share(self) -> f64 {
        f64::from(self.kept) / f64::from(self.all.max(1))
    }
}

fn measured(weir: &Weir, setting: Setting, is_behind_user: bool) -> BTreeMap<Kind, Evidence> {
    let mut by_kind: BTreeMap<Kind, Evidence> = BTreeMap::new();
    for seed in SEEDS {
        let dialogue = Dialogue::new(seed, setting);
        for planted in &dialogue.planted {
            let body = dialogue.body(&planted.question, is_behind_user);
            let tokens = Body::read(&body).expect("it is a request").tokens();
            let limit = tokens * BUDGET_PERMILLE / 1000;
            let planned = weir.plan(&body, limit).expect("it fits");
            assert!(planned.sent_tokens <= limit, "seed {seed}: {}", planned.sent_tokens);
            let sent = planned.body.as_deref().expect("it is changed");
            let sent = std::str::from_utf8(sent).expect("it is JSON");
            let own = by_kind.entry(planted.kind).or_default();
            for sentence in &planted.evidence {
                assert!(body.contains(sentence.as_str()), "seed {seed}: {sentence}");
                own.all += 1;
                own.kept += u32::from(sent.contains(sentence.as_str()));
            }
        }
    }
    by_kind
}

#[test]
fn evidence_comes_back_whoever_spoke_last() {
    let weir = Weir::new();
    let mut missing = Vec::new();
    println!("evidence at {} % of the conversation, by the last speaker", BUDGET_PERMILLE / 10);
    for setting in [Setting::Talk, Setting::ToolsFurtherUp, Setting::ToolsShortlyBefore] {
        for is_behind_user in [false, true] {
            let by_kind = measured(&weir, setting, is_behind_user);
            let speaker = if is_behind_user { "user" } else { "assistant" };
            let mut row = format!("{setting:?}, {speaker}:");
            let mut total = Evidence::default();
            for kind in KINDS {
                let own = by_kind[&kind];
                total.all += own.all;
                total.kept += own.kept;
                row += &format!(" {kind:?} {:.2}", own.share());
            }
            println!("{row} | all {:.3} of {}", total.share(), total.all);
            if total.share() < 0.7 {
                missing.push(row);
            }
        }
    }
    assert!(missing.is_empty(), "less than .70: {missing:#?}");
}
