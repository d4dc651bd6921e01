//! Credentials by upstream: every upstream's view of every kind of header that can authenticate.

use super::setting::{Play, Up, failing, memory, question, said, status, ups, weir};
use crate::server::harness::{ask, bare, chat};

const CALLERS: &str = "authorization: Bearer callers-own\r\napi-key: callers-own\r\nx-api-key: \
                       callers-own\r\nopenai-organization: callers-own\r\nopenai-project: \
                       callers-own\r\ncookie: callers-own\r\nx-goog-api-key: callers-own\r\n\
                       ocp-apim-subscription-key: callers-own\r\nx-harmless: kept\r\n";
const NAMES: [&str; 8] = [
    "authorization",
    "api-key",
    "x-api-key",
    "openai-organization",
    "openai-project",
    "cookie",
    "x-goog-api-key",
    "ocp-apim-subscription-key",
];

const TOML: &str = r#"
    [upstream]
    url = "{open}"
    headers = { x-all = "plain" }
    [upstreams.owned]
    url = "{owned}"
    api_key = "env:OWNED"
    headers.X-Secret = "env:HEADER"
    [upstreams.bare]
    url = "{bare}"
    headers = { api-key = "env:AZURE" }
    [upstreams.told]
    url = "{told}"
    forward_caller_key = true
    [[routes]]
    models = ["owned"]
    upstream = "owned"
    fallback = ["bare"]
    [[routes]]
    models = ["bare"]
    upstream = "bare"
    [[routes]]
    models = ["told"]
    upstream = "told"
    fallback = ["owned"]
"#;

/// The upstreams, the default first.
const UPSTREAMS: [&str; 4] = ["open", "owned", "bare", "told"];

#[tokio::test]
async fn a_callers_credential_goes_where_it_is_told_to_and_nowhere_else() {
    let (ups, urls) = ups(UPSTREAMS).await;
    let weir = weir(&memory(), TOML, &urls).await;
    // The last requests one model after another, since each fails.
    let chains: [(&str, &[usize]); 6] = [
        ("anything", &[0]),
        ("owned", &[1]),
        ("bare", &[2]),
        ("told", &[3]),
        ("owned", &[1, 2]),
        ("told", &[3, 1]),
    ];
    for (model, chain) in chains {
        for failed in &chain[..chain.len() - 1] {
            ups[*failed].then([failing(503)]);
        }
        let answer = ask(weir.address, chat(CALLERS, question(model).to_string())).await;
        assert_eq!(said(&answer), format!("from {}", UPSTREAMS[chain[chain.len() - 1]]), "{model}");
        for (number, up) in ups.iter().enumerate() {
            let seen = up.seen();
            assert_eq!(seen.len(), chain.iter().filter(|at| **at == number).count(), "{model}");
            for seen in &seen {
                check(number, &seen.head, |name| seen.header(name).map(str::to_owned));
            }
        }
    }
    for path in ["/v1/models/owned", "/v1/models", "/v1/models?x=kept&key=callers-own&API%2Dkey=k"]
    {
        ask(weir.address, bare("GET", path, CALLERS)).await;
        for (number, up) in ups.iter().enumerate() {
            for seen in up.seen() {
                check(number, &seen.head, |name| seen.header(name).map(str::to_owned));
            }
        }
    }
}

#[tokio::test]
async fn what_a_query_has_of_a_callers_credential_goes_no_further_either() {
    let (ups, urls) = ups(UPSTREAMS).await;
    let weir = weir(&memory(), TOML, &urls).await;
    let query = "x=kept&key=callers-own&API%2Dkey=callers-own&y=2";
    for (number, model) in ["anything", "owned", "bare", "told"].into_iter().enumerate() {
        for path in ["/v1/chat/completions", "/v1/embeddings"] {
            let request = String::from_utf8(chat(CALLERS, question(model).to_string()));
            let request = request.expect("text").replacen(
                "/v1/chat/completions",
                &format!("{path}?{query}"),
                1,
            );
            assert_eq!(ask(weir.address, request).await.status(), 200, "{model} {path}");
            let seen = ups[number].seen();
            let [seen] = seen.as_slice() else { panic!("one: {}", seen.len()) };
            let expected = if matches!(number, 0 | 3) { query } else { "x=kept&y=2" };
            let line = seen.head.lines().next().unwrap_or_default();
            assert!(line.contains(&format!("{path}?{expected} ")), "{model}: {line}");
        }
    }
}

/// Checks the headers that the upstream of this number received.
fn check(number: usize, head: &str, header: impl Fn(&str) -> Option<String>) {
    assert_eq!(header("x-harmless").as_deref(), Some("kept"));
    let own = |name: &str| match (number, name) {
        (1, "authorization") => Some("Bearer secret-of-OWNED"),
        (2, "api-key") => Some("secret-of-AZURE"),
        _ => None,
    };
    for name in NAMES {
        let expected = if matches!(number, 0 | 3) { Some("callers-own") } else { own(name) };
        let value = header(name);
        let value = value.as_deref().map(|value| match name {
            "authorization" if matches!(number, 0 | 3) => value.trim_start_matches("Bearer "),
            _ => value,
        });
        assert_eq!(value, expected, "{number} {name}\n{head}");
    }
    let all = (number == 0).then_some("plain");
    assert_eq!(header("x-all").as_deref(), all);
    let secret = (number == 1).then_some("secret-of-HEADER");
    assert_eq!(header("x-secret").as_deref(), secret);
}

#[tokio::test]
async fn what_an_upstream_says_of_the_keys_owner_is_told_to_the_owner_alone() {
    let (open, owned) = (Up::start("open").await, Up::start("owned").await);
    let bare = Up::start("bare").await;
    let told = Up::start("told").await;
    let urls =
        [("open", open.url()), ("owned", owned.url()), ("bare", bare.url()), ("told", told.url())];
    let weir = weir(&memory(), TOML, &urls).await;
    let answer = status(200, "set-cookie: a=b\r\nopenai-organization: o\r\n", "{}");
    for up in [&open, &owned, &bare, &told] {
        up.then([Play::Answer(answer.clone())]);
    }
    for (model, is_told) in [("x", true), ("owned", false), ("bare", false), ("told", true)] {
        let answer = ask(weir.address, chat(CALLERS, question(model).to_string())).await;
        for name in ["set-cookie", "openai-organization"] {
            assert_eq!(answer.header(name).is_some(), is_told, "{model} {name}");
        }
    }
}
