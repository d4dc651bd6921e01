//! Preflight checks of contents at the borders: exactly the room, one token more, and contents that
//! never fit.

use serde_json::json;
use weir::proxy::Question;
use weir_engine::compact::report::{Advice, Category, Preflight};

use crate::invariants::harness::Weir;

/// Returns a text of this many tokens.
fn words(tokens: u64) -> String {
    " word".repeat(tokens as usize)
}

/// Builds a dialogue of about 300 tokens.
fn body() -> String {
    let mut messages = vec![json!({"role": "user", "content": "begin"})];
    for _ in 0..3 {
        messages.push(json!({"role": "assistant", "content": words(80)}));
        messages.push(json!({"role": "user", "content": "go on"}));
    }
    json!({"model": "gpt-4o", "messages": messages}).to_string()
}

fn judged(limit_tokens: u64, category: Category, content: String) -> Preflight {
    judged_by(&Weir::new(), limit_tokens, category, content)
}

fn judged_by(weir: &Weir, limit_tokens: u64, category: Category, content: String) -> Preflight {
    let question = Question { content: Some((category, content)), ..Question::default() };
    let explained = weir.explain(&body(), limit_tokens, question).expect("it is planned");
    explained.preflight.expect("it was asked for")
}

#[test]
fn contents_are_judged_at_their_borders() {
    const LIMIT: u64 = 1000;
    let room = judged(LIMIT, Category::Message, String::new()).room_tokens;
    assert!((600..750).contains(&room), "{room}");
    // Room that remains next to the first user message and the newest, and the largest content that
    // fits.
    for (category, tokens, advice) in [
        (Category::Message, 0, Advice::Send),
        (Category::Message, room, Advice::Send),
        (Category::Message, room + 1, Advice::SendAndCut),
        (Category::ToolResult, room, Advice::Send),
        (Category::ToolResult, room + 1, Advice::SendAndCut),
        (Category::System, room, Advice::Send),
        (Category::Message, LIMIT, Advice::Refuse),
        (Category::System, LIMIT, Advice::Refuse),
    ] {
        let own = judged(LIMIT, category, words(tokens));
        assert_eq!(own.advice, advice, "{tokens} of {category:?}: {own:?}");
        assert_eq!(own.fits, matches!(advice, Advice::Send | Advice::SendAndCut), "{own:?}");
        assert_eq!(own.content_tokens, tokens + 4, "{own:?}");
        match advice {
            Advice::Send | Advice::SendAndCut => {
                assert_eq!(own.content_sent_tokens, own.content_tokens);
                assert_eq!(own.remaining_tokens, LIMIT - own.request_tokens);
            }
            Advice::Shorten | Advice::Refer | Advice::Refuse => {
                assert_eq!(own.content_sent_tokens, 0)
            }
        }
    }
}

#[test]
fn results_too_large_are_to_be_shortened() {
    for limit in [1000, 3000] {
        for (category, tokens) in [Category::ToolResult, Category::File, Category::Error]
            .into_iter()
            .flat_map(|category| [(category, limit), (category, 20 * limit)])
        {
            let own = judged(limit, category, words(tokens));
            assert_eq!((own.advice, own.fits), (Advice::Shorten, false), "{own:?}");
            assert!(own.request_tokens <= limit, "{own:?}");
            assert!((1..own.content_tokens).contains(&own.content_sent_tokens), "{own:?}");
        }
    }
}

#[test]
fn what_gives_way_to_a_reference_is_said_at_its_bound() {
    let weir = Weir::with(|config| config.context.policy.shares.oversize_tokens = 500);
    for (category, tokens, advice) in [
        (Category::ToolResult, 500, Advice::Send),
        (Category::ToolResult, 501, Advice::Refer),
        (Category::File, 5000, Advice::Refer),
        (Category::Message, 501, Advice::Send),
    ] {
        let own = judged_by(&weir, 8000, category, words(tokens));
        assert_eq!(own.advice, advice, "{own:?}");
        assert_eq!(own.fits, advice == Advice::Send, "{own:?}");
        assert_eq!(own.content_sent_tokens < own.content_tokens, !own.fits, "{own:?}");
    }
}

#[test]
fn what_is_foretold_comes_true() {
    const LIMIT: u64 = 1000;
    for (category, tokens) in
        [(Category::Message, 500), (Category::Message, 800), (Category::Message, 5000)]
    {
        let content = words(tokens);
        let own = judged(LIMIT, category, content.clone());
        let mut next: serde_json::Value = serde_json::from_str(&body()).expect("JSON");
        let messages = next["messages"].as_array_mut().expect("a list");
        messages.push(json!({"role": "user", "content": content}));
        match Weir::new().plan(&next.to_string(), LIMIT) {
            Ok(planned) => assert_eq!(planned.sent_tokens, own.request_tokens, "{own:?}"),
            Err(_) => assert_eq!(own.advice, Advice::Refuse, "{own:?}"),
        }
    }
}

#[test]
fn every_category_has_a_name() {
    for (name, category) in Category::NAMES {
        assert_eq!(Category::from_name(name), Some(category));
        assert_eq!(json!(category), name);
    }
    assert_eq!(Category::from_name("other"), None);
}
