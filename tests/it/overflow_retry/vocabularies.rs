//! Models with their own vocabularies, embedded or from a file: weir's reported counts equal the
//! upstream's, and weir learns the tokens that a chat template adds if they matter.

use serde_json::{Value, json};
use weir::proxy::learned::ratio_rows;
use weir_engine::tokens::Encoding;
use weir_engine::tokens::own::Vocabulary;

use super::{before, conversation, known, memory, send};
use crate::scripted_upstream::{Options, Server};

async fn upstream(context_tokens: u64, template_tokens: u64) -> Server {
    let options = Options {
        context_tokens,
        template_tokens,
        allow_unknown: true,
        overflow_style: "llamacpp".to_owned(),
        ..Default::default()
    };
    Server::start(options).await.expect("a free port")
}

fn asked(exchanges: usize) -> Value {
    conversation(exchanges, &json!({"model": "foreign-qwen2"}))
}

#[tokio::test]
async fn an_embedded_vocabulary_counts_what_the_upstream_does() {
    let encoding = Encoding::from_name("qwen2").expect("it exists");
    let upstream = upstream(100_000, 0).await;
    let store = memory();
    let weir = before(&upstream, &store, known("foreign-qwen2", encoding, 100_000)).await;
    for exchanges in [1, 6, 30] {
        let answer = send(&weir, "a", &asked(exchanges)).await;
        let seen = upstream.requests();
        let truth = seen.last().and_then(|seen| seen.prompt_tokens);
        let told = answer.header("x-weir-sent-tokens").and_then(|told| told.parse().ok());
        assert_eq!((answer.status(), told), (200, truth), "{exchanges}");
    }
    assert_eq!(ratio_rows(&store, 10).await.expect("readable"), []);
}

#[tokio::test]
async fn what_a_template_adds_is_learned_from_one_refusal() {
    let encoding = Encoding::from_name("qwen2").expect("it exists");
    for stream in [false, true] {
        let upstream = upstream(3000, 600).await;
        let weir = before(&upstream, &memory(), known("foreign-qwen2", encoding, 3000)).await;
        // The conversation grows past the window, is compacted, and grows on; so does a second one.
        for exchanges in (10..40).chain(12..30) {
            let mut body = asked(exchanges);
            body["stream"] = json!(stream);
            let answer = send(&weir, "a", &body).await;
            assert_eq!(answer.status(), 200, "{exchanges} {answer:?}");
        }
        let refused = upstream.requests().iter().filter(|seen| seen.status != 200).count();
        assert_eq!(refused, 1);
    }
}

#[tokio::test]
async fn a_file_s_vocabulary_counts_what_is_sent() {
    let file = include_bytes!("../../data/tokenizers/bytes.json");
    let vocabulary = Vocabulary::read(file).expect("a tokenizer.json");
    let own = Encoding::Own(vocabulary.own());
    let upstream = upstream(100_000, 0).await;
    let weir = before(&upstream, &memory(), known("foreign-qwen2", own, 5000)).await;
    let body = json!({"model": "foreign-qwen2", "messages": [
        {"role": "user", "content": "The river runs over the wall, as ever."},
    ]});
    let answer = send(&weir, "a", &body).await;
    // 19 by the table next to the file, plus four for the message and three for the reply.
    assert_eq!(answer.header("x-weir-sent-tokens"), Some("26"));
    let answer = send(&weir, "a", &asked(40)).await;
    let told = |name| answer.header(name).and_then(|told| told.parse::<u64>().ok());
    assert_eq!(answer.status(), 200);
    assert!(told("x-weir-received-tokens") > Some(5000));
    assert!(told("x-weir-sent-tokens") <= told("x-weir-limit-tokens"));
}
