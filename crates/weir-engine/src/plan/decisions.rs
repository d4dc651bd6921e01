//! Decisions that a conversation keeps. Everything that its plans depend on besides messages and
//! summaries, so that a later request can be planned as those before it, even if its options have
//! changed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PlanOptions;
use crate::compact::Profile;
use crate::wire::Request;

/// Decisions of a conversation's plans. The same decisions and messages give the same messages to send
/// on every machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decisions {
    /// Profile of its compactions.
    pub profile: Profile,
    /// Number of messages from the front that are sent without the model's thinking, besides those
    /// that a compaction leaves without it.
    pub thinking_from: usize,
    /// Whether a system message after other messages becomes a user's.
    pub late_system_as_user: bool,
    /// Numbers of messages after which a compaction was made although none was due, because the provider's
    /// cache had dropped the conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compacted_at: Vec<usize>,
}

impl PlanOptions {
    /// Returns the decisions for a conversation whose tools and schemas take `extras_tokens`: those
    /// that it keeps, or those of these options.
    pub fn decisions(&self, request: &Request<'_>, extras_tokens: u64) -> Decisions {
        let kept = self.kept.as_deref();
        Decisions {
            profile: match kept {
                Some(kept) => kept.profile.clone(),
                None => self.profile(request, extras_tokens),
            },
            thinking_from: match self.drops_thinking {
                true => request.messages.len(),
                false => kept.map_or(0, |kept| kept.thinking_from),
            },
            late_system_as_user: self.late_system_as_user,
            compacted_at: kept.map_or_else(Vec::new, |kept| kept.compacted_at.clone()),
        }
    }

    /// Plans by these decisions, which earlier requests of the conversation were sent by. The limits
    /// stay, and `measure` is the way of counting that the decisions name.
    pub fn keep(&mut self, decisions: Arc<Decisions>) {
        self.policy = decisions.profile.policy.clone();
        self.measure = decisions.profile.measure;
        self.late_system_as_user = decisions.late_system_as_user;
        self.kept = Some(decisions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Policy;
    use crate::compact::anchors::Anchors;
    use crate::compact::preset;
    use crate::plan::{NoSummaries, plan};
    use crate::tokens::{Digits, Encoding};
    use crate::wire::Protocol;

    fn body(turns: usize) -> String {
        let turn = |nth: usize| {
            let said = "The level rose again. ".repeat(20);
            format!(
                r#"{{"role":"user","content":"Open {nth}. {said}"}},{{"role":"assistant","content":[{{"type":"thinking","thinking":"Part {nth}.","signature":"s{nth}"}},{{"type":"text","text":"I opened {nth}. {said}"}}]}}"#
            )
        };
        let turns: Vec<String> = (0..turns).map(turn).collect();
        let last = r#"{"role":"user","content":"Go on."}"#;
        format!(r#"{{"model":"m","max_tokens":9,"messages":[{},{last}]}}"#, turns.join(","))
    }

    fn options(window_tokens: u64, permille: u32) -> PlanOptions {
        let encoding = Encoding::Scaled { permille, digits: Digits::Apart };
        let mut options = PlanOptions::new("m", encoding, window_tokens);
        options.policy.is_thinking_bound = true;
        options
    }

    fn sent(body: &str, options: &PlanOptions) -> (String, Decisions) {
        let request = Protocol::Messages.read(body.as_bytes(), 1000).expect("a request");
        let plan = plan(&request, options, &NoSummaries).expect("it fits");
        (plan.body.unwrap_or_else(|| body.to_owned()), options.decisions(&request, 0))
    }

    /// A conversation that was compacted although nothing was due goes on from there, by its decisions alone.
    #[test]
    fn an_early_compaction_is_made_again_from_its_record() {
        let early = PlanOptions { compacts_early: true, ..options(9_000, 1000) };
        let at = body(24);
        let request = Protocol::Messages.read(at.as_bytes(), 1000).expect("a request");
        let sent = plan(&request, &early, &NoSummaries).expect("it fits");
        assert!(sent.is_early && sent.compactions == 1, "{}", sent.action);
        let whole = plan(&request, &options(9_000, 1000), &NoSummaries).expect("it fits");
        assert_eq!(whole.compactions, 0);
        let mut decisions = early.decisions(&request, 0);
        decisions.compacted_at.push(request.messages.len());
        let mut kept = options(9_000, 1000);
        kept.keep(Arc::new(decisions));
        let again = plan(&request, &kept, &NoSummaries).expect("it fits");
        assert_eq!(again.body, sent.body);
        let more = r#",{"role":"assistant","content":"I went."},{"role":"user","content":"On."}]}"#;
        let later = at.strip_suffix("]}").expect("a list").to_owned() + more;
        let request = Protocol::Messages.read(later.as_bytes(), 1000).expect("a request");
        let later =
            plan(&request, &kept, &NoSummaries).expect("it fits").body.expect("it is shorter");
        let sent = sent.body.expect("it is shorter");
        assert_eq!(later.strip_prefix(sent.strip_suffix("]}").expect("a list")), Some(more));
    }

    /// Where nobody set the limit, a learned ratio alone refuses nothing.
    #[test]
    fn the_provider_decides_what_only_a_ratio_refuses() {
        let said = "The level rose again. ".repeat(200);
        let body =
            format!(r#"{{"max_tokens":9,"messages":[{{"role":"user","content":"{said}"}}]}}"#);
        let request = Protocol::Messages.read(body.as_bytes(), 1000).expect("a request");
        let plan = |permille: u32, provider_decides: bool| {
            let mut options = options(1_100, permille);
            options.provider_decides = provider_decides;
            plan(&request, &options, &NoSummaries).is_ok()
        };
        assert!(plan(1000, false) && !plan(1900, false) && plan(1900, true));
        let whole = said.repeat(2);
        let body = body.replace(&said, &whole);
        let request = Protocol::Messages.read(body.as_bytes(), 1000).expect("a request");
        let mut options = options(1_100, 1900);
        options.provider_decides = true;
        assert!(super::super::plan(&request, &options, &NoSummaries).is_err());
    }

    /// Images of unknown size alone refuse nothing.
    #[test]
    fn the_provider_decides_about_images_that_it_fetches() {
        let image = r#"{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}"#;
        let body =
            format!(r#"{{"messages":[{{"role":"user","content":[{image},{image},{image}]}}]}}"#);
        let request = Protocol::Chat.read(body.as_bytes(), 1000).expect("a request");
        let mut options = PlanOptions::new("gpt-4o-mini", Encoding::O200kBase, 128_000);
        assert!(plan(&request, &options, &NoSummaries).is_err());
        options.provider_decides = true;
        let sent = plan(&request, &options, &NoSummaries).expect("it is sent");
        assert!(sent.body.is_none() && sent.sent_tokens > 128_000);
    }

    /// Messages of a body without the last one.
    fn messages(body: &str) -> Vec<serde_json::Value> {
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let mut messages = body["messages"].as_array().expect("a list").clone();
        messages.pop();
        messages
    }

    #[test]
    fn decisions_are_read_as_they_are_written() {
        let request = body(1);
        let request = Protocol::Messages.read(request.as_bytes(), 10).expect("a request");
        let mut options = options(4000, 1300);
        for name in preset::PRESETS {
            options.policy = preset::preset(name).expect("a preset");
            options.policy.anchors = Anchors::new(vec!["^TODO".to_owned()]).expect("sound");
            let decisions = options.decisions(&request, 70);
            let text = serde_json::to_string(&decisions).expect("they are written");
            let read: Decisions = serde_json::from_str(&text).expect("they are read");
            assert_eq!(read, decisions);
        }
        assert!(serde_json::from_str::<Decisions>("{}").is_err());
    }

    #[test]
    fn kept_decisions_keep_the_prefix_under_other_options() {
        let (first, decisions) = sent(&body(20), &options(4000, 1000));
        assert!(first.len() < body(20).len(), "it is compacted");
        for (window_tokens, permille, policy) in [
            (4000, 1300, Policy::default()),
            (100_000, 1000, Policy::default()),
            (100_000, 500, Policy { low_permille: 400, ..Policy::default() }),
        ] {
            let mut other = options(window_tokens, permille);
            other.policy = Policy { is_thinking_bound: true, ..policy };
            let (moved, _) = sent(&body(21), &other);
            assert!(!messages(&moved).starts_with(&messages(&first)), "there is a difference");
            other.keep(Arc::new(decisions.clone()));
            let (next, kept) = sent(&body(21), &other);
            assert!(messages(&next).starts_with(&messages(&first)));
            assert_eq!(kept, decisions);
        }
    }

    #[test]
    fn thinking_that_is_left_out_once_stays_out() {
        let mut options = options(100_000, 1000);
        options.drops_thinking = true;
        let (first, decisions) = sent(&body(3), &options);
        assert!(!first.contains("signature"));
        options.drops_thinking = false;
        options.keep(Arc::new(decisions));
        let (next, _) = sent(&body(5), &options);
        assert!(messages(&next).starts_with(&messages(&first)));
        assert_eq!(next.matches("signature").count(), 2);
    }
}
