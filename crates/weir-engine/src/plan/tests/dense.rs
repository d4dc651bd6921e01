//! Bounds of prompts by their bytes, compared with exact counts.

use crate::tokens::Encoding;
use crate::wire::Protocol;
use crate::wire::allowance::Allowance;

fn allowance(body: &str) -> Allowance {
    Allowance::of(body.as_bytes(), Some(Protocol::Chat)).expect("an object")
}

/// Bounds of dense texts against the counts of o200k, in hundredths.
#[test]
fn dense_texts_are_bounded_and_words_are_not_held_at_more() {
    let mut state = 1_u64;
    let mut random = |letters: &[u8], count: usize| -> String {
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            letters[(state >> 33) as usize % letters.len()] as char
        };
        (0..count).map(|_| next()).collect()
    };
    let lower = b"abcdefghijklmnopqrstuvwxyz";
    let base64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let listed: Vec<String> = random(b"0123456789", 3000).chars().map(String::from).collect();
    let rows = [
        ("prose", include_str!("../../../../../docs/budgets.md").to_owned(), 80, 125),
        ("code", include_str!("../../wire/allowance/parts.rs").to_owned(), 80, 140),
        ("JSON", include_str!("../../../../../tests/data/models/prices.json").to_owned(), 80, 140),
        ("base64", random(base64, 6000), 100, 130),
        ("letters", random(lower, 6000), 100, 160),
        ("hex", random(b"0123456789abcdef", 6000), 100, 150),
        ("digits", listed.concat(), 100, 310),
        ("listed digits", listed.join(","), 100, 101),
    ];
    for (name, text, least, most) in rows {
        let body = serde_json::json!({"messages": [{"role": "user", "content": text}]});
        let held =
            allowance(&body.to_string()).dense_tokens * 100 / Encoding::O200kBase.count(&text);
        assert!((least..=most).contains(&held), "{name}: {held}");
    }
    let sealed =
        allowance(&format!(r#"{{"messages":[{{"signature":"{}"}}]}}"#, random(base64, 6000)));
    assert!(sealed.dense_tokens < 100, "{}", sealed.dense_tokens);
    let figures = allowance(&format!(r#"{{"messages":[{{"input":[{}]}}]}}"#, listed.join(",")));
    assert!(figures.dense_tokens >= 5999, "{}", figures.dense_tokens);
}
