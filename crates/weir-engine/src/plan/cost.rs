//! Cost of a plan, known before it starts: what is not counted yet, and whether content must be read.

use std::sync::Arc;

use super::{Known, Mode, PlanOptions};
use crate::compact::{Compactor, Fact, Notes, recall};
use crate::wire::Request;

/// Bytes of JSON text that take a token in nearly any conversation: most take fewer.
const EXPECTED_BYTES_PER_TOKEN: u64 = 6;

/// Work that a plan takes, given what is at hand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanCost {
    /// Bytes of the messages that are not counted yet.
    pub uncounted_bytes: usize,
    /// Bytes of the largest item outside the messages that is not counted yet.
    pub largest_uncounted_extra_bytes: usize,
    /// Bytes of the messages in which the policy's patterns are searched.
    pub searched_bytes: usize,
    /// Whether a compaction may be due at any of the messages, as far as they are counted. If not,
    /// the plan asks for no summary.
    pub is_compaction_due: bool,
    /// Whether a compaction is likely to ask what the uncounted messages say. Then they are best counted
    /// and parsed at once ([`Measure::read`](crate::Measure::read)).
    pub is_read_likely: bool,
    /// Whether removed messages may be searched for an answer to the last one, as far as the messages
    /// are counted.
    pub is_recall_possible: bool,
}

/// Determines the cost of the plan of `request`. Counts nothing.
pub fn cost(request: &Request<'_>, options: &PlanOptions, known: &dyn Known) -> PlanCost {
    let (mut largest_uncounted_extra_bytes, mut extras_tokens) = (0, 0);
    for (index, extra) in request.extras.iter().enumerate() {
        match known.extra_tokens(index) {
            Some(tokens) => extras_tokens += tokens,
            None => {
                largest_uncounted_extra_bytes = largest_uncounted_extra_bytes.max(extra.raw.len());
            }
        }
    }
    let state = known.state().unwrap_or_else(|| {
        let profile = options.decisions(request, extras_tokens).profile;
        Arc::new(Compactor::new(Arc::new(profile)))
    });
    let (mut uncounted_bytes, mut new_bytes) = (0, 0);
    let mut facts: Vec<Fact> = Vec::new();
    for (index, raw) in request.messages.iter().enumerate().skip(state.messages()) {
        new_bytes += raw.len();
        match known.fact(index) {
            Some(fact) => facts.push(fact),
            None => uncounted_bytes += raw.len(),
        }
    }
    // A bypass leaves out the compaction that is due at the end.
    let is_done = options.mode == Mode::Bypass && state.messages() == request.messages.len();
    PlanCost {
        uncounted_bytes,
        largest_uncounted_extra_bytes,
        searched_bytes: if options.policy.anchors.is_empty() { 0 } else { new_bytes },
        is_read_likely: options.policy.notes == Notes::Excerpts
            && (options.shortens
                || state.may_compact(&facts, uncounted_bytes as u64 / EXPECTED_BYTES_PER_TOKEN)),
        is_compaction_due: options.shortens || (!is_done && state.may_compact(&facts, 0)),
        is_recall_possible: options.mode == Mode::Compact && recall::may_follow(&state, &facts),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::compact::Policy;
    use crate::compact::summary::Space;
    use crate::compact::{Measure, Summary};
    use crate::plan::plan_with;
    use crate::tokens::Encoding;
    use crate::tokens::media::ImageRule;
    use crate::wire::Protocol;

    const MEASURE: Measure =
        Measure { encoding: Encoding::O200kBase, images: ImageRule::Tiles { base: 85, tile: 170 } };

    /// What earlier requests of a conversation left, with the facts of all messages of this one.
    struct AtHand<'a> {
        state: &'a RefCell<Option<Arc<Compactor>>>,
        request: &'a Request<'a>,
    }

    impl Known for AtHand<'_> {
        fn fact(&self, message: usize) -> Option<Fact> {
            let raw = self.request.messages[message];
            Some(MEASURE.fact(&self.request.protocol.read_message(raw).ok()?))
        }

        fn state(&self) -> Option<Arc<Compactor>> {
            self.state.borrow().clone()
        }

        fn keep_state(&self, state: &Arc<Compactor>) {
            self.state.replace(Some(Arc::clone(state)));
        }
    }

    /// Sends the requests that end behind each of `ends` messages of one conversation. Returns the
    /// numbers of compactions, and fails if the cost of one of them announced none.
    fn compactions(raws: &[String], ends: &[usize], limit_tokens: u64, policy: &Policy) -> u32 {
        let state = RefCell::default();
        let mut compactions = 0;
        for end in ends {
            let body = format!(r#"{{"messages":[{}]}}"#, raws[..*end].join(","));
            let request = Protocol::Chat.read(body.as_bytes(), usize::MAX).expect("a request");
            let options = PlanOptions::for_messages(limit_tokens, policy.clone(), MEASURE);
            let at_hand = AtHand { state: &state, request: &request };
            let is_due = cost(&request, &options, &at_hand).is_compaction_due;
            let is_asked = Cell::new(false);
            let summary = |_: &[usize], _: Space| -> Option<Summary> {
                is_asked.set(true);
                None
            };
            let Ok(plan) = plan_with(&request, &options, &summary, &at_hand) else { continue };
            let is_new = plan.compactions > compactions;
            assert!(is_due || !(is_asked.get() || is_new), "{end} messages under {limit_tokens}");
            compactions = plan.compactions;
        }
        compactions
    }

    fn said(role: &str, tokens: usize) -> String {
        serde_json::json!({"role": role, "content": "level ".repeat(tokens)}).to_string()
    }

    /// Adds a call and its result.
    fn work(raws: &mut Vec<String>, tokens: usize) {
        let id = format!("call_{}", raws.len());
        let function = serde_json::json!({"name": "read", "arguments": "{}"});
        let call = serde_json::json!({"id": id, "type": "function", "function": function});
        let own = [
            serde_json::json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            serde_json::json!({"role": "tool", "tool_call_id": id, "content": "rises ".repeat(tokens)}),
        ];
        raws.extend(own.map(|own| own.to_string()));
    }

    /// A dialogue reserves room for recall and an agent does not, so a few words can lower the mark.
    #[test]
    fn an_agent_that_begins_to_talk_is_known_to_compact() {
        let mut raws = vec![said("user", 10)];
        (0..60).for_each(|_| work(&mut raws, 200));
        (0..20).for_each(|_| work(&mut raws, 1));
        let worked = raws.len();
        let mut talked = 0;
        for words in (500..8000).step_by(150) {
            let mut raws = raws.clone();
            raws.extend([said("assistant", words), said("user", 5)]);
            let ends: Vec<usize> = (1..=worked).filter(|end| end % 2 == 1).collect();
            let policy = Policy::default();
            let before = compactions(&raws, &ends, 8000, &policy);
            assert!(before > 0);
            let all = [ends, vec![raws.len()]].concat();
            talked += u32::from(compactions(&raws, &all, 8000, &policy) > before);
        }
        assert!(talked > 0);
    }

    /// A model that binds its thinking is compacted before a round that may pass the mark.
    #[test]
    fn a_compaction_before_a_round_is_known() {
        let detail = r#"[{"type":"reasoning.text","text":"It rises.","signature":"s"}]"#;
        let mut raws = vec![said("user", 10)];
        for round in 0..40 {
            (0..3).for_each(|_| work(&mut raws, 60));
            let answer = format!(
                r#"{{"role":"assistant","content":"Done with {round}.","reasoning_details":{detail}}}"#
            );
            raws.extend([answer, said("user", 5)]);
        }
        let ends: Vec<usize> = (1..=raws.len()).step_by(2).collect();
        let counts = [0, 600].map(|early_permille| {
            let policy = Policy { is_thinking_bound: true, early_permille, ..Policy::default() };
            compactions(&raws, &ends, 2000, &policy)
        });
        assert!(counts[0] > 5 && counts[1] > counts[0], "{counts:?}");
        let other = Policy { early_permille: 600, ..Policy::default() };
        let without = Policy { early_permille: 0, ..Policy::default() };
        let counts = [other, without].map(|policy| compactions(&raws, &ends, 2000, &policy));
        assert_eq!(counts[0], counts[1], "other models are not");
    }

    /// A result that comes late makes the first user message part of its call's turn.
    #[test]
    fn a_first_user_message_that_joins_a_call_is_known_to_compact() {
        let policy = Policy { hard_permille: 800, low_permille: 500, ..Policy::default() };
        for tokens in (10..700).step_by(10) {
            let mut raws = Vec::new();
            work(&mut raws, 100);
            work(&mut raws, tokens);
            raws.insert(3, said("user", 300));
            compactions(&raws, &[2, 4, 5], 1000, &policy);
        }
    }
}
