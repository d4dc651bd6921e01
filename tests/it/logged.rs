//! Log lines about requests: correct, complete and logged once.

use serde_json::{Value, json};
use weir::config::Limit;
use weir_store::Store;
use weir_store::ledger::{RequestQuery, RequestRow};

use crate::server::harness::{self, Message, Upstream, Weir, Wire, bare, chat};
use crate::upstream::{capture_log, log_lines};

/// Builds a complete answer with this many prompt tokens and no cached tokens.
fn answer(prompt_tokens: u64) -> String {
    let body = json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 5,
                  "total_tokens": prompt_tokens + 5},
    });
    whole(200, &body.to_string())
}

fn whole(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Caller on one connection: the next request is read when the previous one has ended and is
/// logged.
struct Caller {
    wire: Wire,
    upstream: Upstream,
}

impl Caller {
    async fn of(weir: &Weir, upstream: Upstream) -> Self {
        Self { wire: Wire::connect(weir.address).await, upstream }
    }

    /// Sends a request to which the upstream gives these answers, one per attempt; returns the
    /// caller's answer and the sent bodies.
    async fn ask(
        &mut self,
        request: impl AsRef<[u8]>,
        answers: &[String],
    ) -> (Message, Vec<Vec<u8>>) {
        self.wire.send(request).await;
        let mut sent = Vec::new();
        for answer in answers {
            let seen = self.upstream.next().await;
            sent.push(seen.body.clone());
            seen.answer(answer);
        }
        (self.wire.message().await.expect("an answer"), sent)
    }

    /// Returns the lines so far, including those of the last request.
    async fn lines(&mut self, target: &str) -> Vec<Value> {
        let health = self.wire.ask(bare("GET", "/healthz", "")).await;
        assert_eq!(health.status(), 200);
        let mut lines = log_lines();
        lines.retain(|line| line["target"] == target);
        lines
    }
}

async fn journaled() -> (Store, Weir, Upstream) {
    capture_log();
    log_lines();
    let upstream = Upstream::start().await;
    let store = Store::in_memory().expect("there is memory");
    let weir = harness::start_with(store.clone(), &upstream.address, |config| {
        config.ledger.enabled = true;
    })
    .await;
    (store, weir, upstream)
}

/// Builds an agent's requests: tools next to the messages, one more call and result each time.
fn growing(rounds: usize) -> Vec<Value> {
    let mut messages = vec![
        json!({"role": "system", "content": "You mend the mill."}),
        json!({"role": "user", "content": "Find out why the wheel stands still."}),
    ];
    for round in 0..rounds {
        let id = format!("call_{round}");
        let arguments = json!({"path": format!("gate_{round}.rs")}).to_string();
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}}]}));
        let text = format!("pub fn gate_{round}() {{ open({round}) }} ").repeat(4);
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    }
    messages
}

fn body(messages: &[Value]) -> String {
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let tool = json!({"type": "function", "function": {
        "name": "read", "description": "Reads a file.", "parameters": parameters}});
    json!({"model": "gpt-4o", "messages": messages, "tools": [tool]}).to_string()
}

fn messages_of(body: &[u8]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(body).expect("JSON");
    body["messages"].as_array().expect("messages").clone()
}

async fn rows(store: &Store) -> Vec<RequestRow> {
    let mut rows = store.requests(RequestQuery::default()).await.expect("readable");
    rows.reverse();
    rows
}

/// A sent request that does not begin with the previous one comes with exactly one logged and
/// charged compaction; any other with none. The limits differ, since the engine rounds by them and
/// may decide before a request has to change.
#[tokio::test]
async fn each_compaction_is_logged_and_charged_once_and_the_first_one_too() {
    for limit in [2600, 2750, 3100, 3333, 4000] {
        let (store, weir, upstream) = journaled().await;
        let mut caller = Caller::of(&weir, upstream).await;
        let headers = format!("authorization: Bearer a\r\nx-weir-max-input-tokens: {limit}\r\n");
        let mut before: Vec<Value> = Vec::new();
        let mut rewritten = Vec::new();
        for round in 0..80 {
            let request = chat(&headers, body(&growing(round)));
            let (answered, sent) = caller.ask(request, &[answer(5000)]).await;
            assert_eq!(answered.status(), 200);
            let now = messages_of(&sent[0]);
            let is_prefix = now.len() >= before.len() && now[..before.len()] == before[..];
            before = now;
            let compactions = caller.lines("weir::context").await;
            assert_eq!(
                compactions.len(),
                usize::from(!is_prefix),
                "{limit}, {round}: {compactions:#?}"
            );
            if let Some(line) = compactions.first() {
                rewritten.push(round);
                assert_eq!(
                    (&line["event"], &line["steps"]),
                    (&json!("compaction"), &json!("evict"))
                );
                assert_eq!(line["model"], "gpt-4o");
                let told = |name: &str| answered.header(name).and_then(|told| told.parse().ok());
                assert_eq!(line["received_tokens"].as_u64(), told("x-weir-received-tokens"));
                assert_eq!(line["sent_tokens"].as_u64(), told("x-weir-sent-tokens"));
            }
        }
        assert!(!rewritten.is_empty(), "{limit}");
        let rows = rows(&store).await;
        assert_eq!(rows.len(), 80);
        // Each removed token saves one cache read, less the tokens reread after a compaction.
        let mut cache_read = None;
        for (round, row) in rows.iter().enumerate() {
            let saved = row.settlement.saved_nano_usd.expect("the model has a price");
            let [received, sent] =
                [row.received_tokens, row.sent_tokens].map(Option::unwrap_or_default);
            let left_out = i64::try_from(received - sent).expect("a few thousand");
            let is_rewritten = rewritten.contains(&round);
            if left_out > 0 && !is_rewritten {
                cache_read.get_or_insert(saved / left_out);
            }
            let whole = cache_read.map_or(saved, |price| price * left_out);
            match is_rewritten {
                true => assert!(saved < 0 || saved < whole, "{limit}, {round}: {saved}"),
                false => assert_eq!(saved, whole, "{limit}, {round}"),
            }
        }
        let first = &rows[rewritten[0]].settlement;
        assert!(first.saved_nano_usd.is_some_and(|saved| saved < 0), "{limit}: {first:?}");
    }
}

#[tokio::test]
async fn a_compaction_that_no_upstream_took_is_logged_when_one_does() {
    let (_store, weir, upstream) = journaled().await;
    let mut caller = Caller::of(&weir, upstream).await;
    let headers = "authorization: Bearer a\r\nx-weir-max-input-tokens: 3000\r\n";
    let request = chat(headers, body(&growing(60)));
    // A plan that is only requested is no compaction either.
    let plan = String::from_utf8(request.clone()).expect("text");
    let plan = plan.replacen("/v1/chat/completions", "/weir/v1/plan", 1);
    caller.ask(plan, &[]).await;
    caller.ask(&request, &[whole(500, "{}")]).await;
    assert_eq!(caller.lines("weir::context").await, Vec::<Value>::new());
    caller.ask(&request, &[answer(5000)]).await;
    assert_eq!(caller.lines("weir::context").await.len(), 1);
    caller.ask(&request, &[answer(5000)]).await;
    assert_eq!(caller.lines("weir::context").await, Vec::<Value>::new(), "sent so before");
}

/// Builds OpenAI's refusal for size, with its numbers.
fn refusal(window: u64) -> String {
    let message = format!(
        "This model's maximum context length is {window} tokens. However, your messages resulted in \
         9000 tokens. Please reduce the length of the messages."
    );
    whole(
        400,
        &json!({"error": {"message": message, "code": "context_length_exceeded"}}).to_string(),
    )
}

#[tokio::test]
async fn what_is_logged_of_a_resend_is_what_happened() {
    let (store, weir, upstream) = journaled().await;
    let mut caller = Caller::of(&weir, upstream).await;
    let request = |rounds| chat("authorization: Bearer a\r\n", body(&growing(rounds)));
    caller.ask(request(40), &[answer(3000)]).await;
    assert_eq!(caller.lines("weir::context").await, Vec::<Value>::new());
    let (_, sent) = caller.ask(request(45), &[refusal(2500), answer(5000)]).await;
    assert_eq!(sent.len(), 2);
    let lines = log_lines_of(&mut caller).await;
    let of =
        |target: &str| lines.iter().filter(|line| line["target"] == target).collect::<Vec<_>>();
    let resends: Vec<_> = lines.iter().filter(|line| line["event"] == "resend").collect();
    assert_eq!(resends.len(), 1, "{lines:#?}");
    let [compaction] = of("weir::context")[..] else { panic!("one: {lines:#?}") };
    assert_eq!(compaction["steps"], "evict");
    assert_eq!(resends[0]["sent_tokens"], compaction["sent_tokens"]);
    let [request_line] = of("weir::request")[..] else { panic!("one: {lines:#?}") };
    assert_eq!((&request_line["status"], &request_line["overflows"]), (&json!(200), &json!(1)));
    let rows = rows(&store).await;
    let saved: Vec<_> = rows.iter().map(|row| row.settlement.saved_nano_usd).collect();
    assert!(saved[2].is_some_and(|saved| saved < 0), "it was a rewrite: {saved:?}");

    // A request that cannot fit is not sent again, and the log does not claim that it is.
    let system = json!({"model": "gpt-4", "messages": [
        {"role": "system", "content": "word ".repeat(3000)}, {"role": "user", "content": "hello"}]});
    let request = chat("authorization: Bearer a\r\n", system.to_string());
    let (refused, _) = caller.ask(request, &[refusal(2500)]).await;
    refused.assert_error(400, "context_length_exceeded");
    let lines = log_lines_of(&mut caller).await;
    assert!(lines.iter().all(|line| line["event"] != "resend"), "{lines:#?}");
    assert!(!lines.iter().any(|line| line["message"].to_string().contains("again")), "{lines:#?}");
}

async fn log_lines_of(caller: &mut Caller) -> Vec<Value> {
    let health = caller.wire.ask(bare("GET", "/healthz", "")).await;
    assert_eq!(health.status(), 200);
    log_lines()
}

#[tokio::test]
async fn lines_of_weirs_own_errors_have_status_model_and_tokens() {
    let (_store, weir, upstream) = journaled().await;
    let mut caller = Caller::of(&weir, upstream).await;
    let request = chat("x-weir-max-input-tokens: 1\r\n", body(&growing(1)));
    let (refused, _) = caller.ask(request, &[]).await;
    refused.assert_error(400, "context_length_exceeded");
    let lines = caller.lines("weir::request").await;
    let [line] = &lines[..] else { panic!("one: {lines:#?}") };
    assert_eq!((&line["status"], &line["model"]), (&json!(400), &json!("gpt-4o")));
    assert_eq!(
        (&line["outcome"], &line["limit_tokens"]),
        (&json!("context_length_exceeded"), &json!(1))
    );
    assert!(line["received_tokens"].as_u64().is_some_and(|tokens| tokens > 50), "{line}");
    assert_eq!(line["sent_tokens"], Value::Null, "nothing was sent");

    // This port has no listener any more.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = nobody.local_addr().expect("it is bound").to_string();
    drop(nobody);
    let weir = harness::start(&address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    wire.ask(chat("", body(&growing(1)))).await.assert_error(502, "upstream_connect");
    wire.ask(bare("GET", "/healthz", "")).await;
    let mut lines = log_lines();
    lines.retain(|line| line["target"] == "weir::request");
    let [line] = &lines[..] else { panic!("one: {lines:#?}") };
    assert_eq!((&line["status"], &line["model"]), (&json!(502), &json!("gpt-4o")));
    assert!(line["sent_tokens"].as_u64().is_some_and(|tokens| tokens > 50), "{line}");
}

#[tokio::test]
async fn a_route_that_is_not_read_says_so_and_its_lines_have_the_model() {
    capture_log();
    log_lines();
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |config| {
        config.limits = vec![Limit { model: "gpt-5*".to_owned(), max_input_tokens: 12_000 }];
    })
    .await;
    let mut caller = Caller::of(&weir, upstream).await;
    let mut warnings = Vec::new();
    for (route, model, answered) in [
        ("completions", "davinci", whole(200, r#"{"object":"text_completion"}"#)),
        ("completions", "davinci", whole(200, r#"{"object":"text_completion"}"#)),
        ("completions", "gpt-5", whole(429, "{}")),
        ("completions", "gpt-5", whole(200, r#"{"object":"text_completion"}"#)),
    ] {
        let text = "what \"model\": is this? ".repeat(5000);
        let body =
            json!({"input": [{"role": "user", "content": text, "model": "no"}], "model": model});
        let request = format!(
            "POST /v1/{route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.to_string().len()
        );
        let (answer, sent) = caller.ask(request, &[answered]).await;
        assert_eq!(answer.header("x-weir-action"), Some("unread"), "{route}");
        assert_eq!(sent[0], body.to_string().into_bytes(), "to the byte");
        let lines = log_lines_of(&mut caller).await;
        let line = lines.iter().find(|line| line["target"] == "weir::request").expect("a line");
        assert_eq!((&line["model"], &line["action"]), (&json!(model), &json!("unread")));
        warnings.extend(lines.into_iter().filter(|line| line["target"] == "weir::limits"));
    }
    let told: Vec<_> = warnings
        .iter()
        .map(|line| json!([line["route"], line["model"], line["limit_tokens"]]))
        .collect();
    let expected =
        [json!(["completions", "davinci", null]), json!(["completions", "gpt-5", 12_000])];
    assert_eq!(told, expected, "once for each route and model");
    // A request that is no conversation has no limit that could fail.
    let request = "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    let (answer, _) = caller.ask(request, &[whole(200, "{}")]).await;
    assert_eq!(answer.header("x-weir-action"), None);
}
