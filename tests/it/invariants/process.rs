//! Pure, across processes: two successive weirs send the same bytes as the planner in this
//! process.

use super::harness::{MODEL, Weir};
use super::simulated::{Client, clients};
use crate::cli::Serving;
use crate::server::harness::{FINE, Upstream, Wire, chat};
use crate::traces;

/// Clients whose requests are sent; all use models that weir knows without configuration.
const CLIENTS: [&str; 4] =
    ["agent, appends only", "edited message", "growing tool list", "two agents, one system prompt"];
/// Number of recorded conversations, and of the last requests of each.
const RECORDED: usize = 10;
const LAST_REQUESTS: usize = 6;

/// Request with its expected result.
struct Planned {
    /// Name of its client.
    name: String,
    limit_tokens: u64,
    body: String,
    sent: Vec<u8>,
}

/// Sends requests through a new weir process and compares the received bytes.
async fn compare_with_process(planned: impl Iterator<Item = &Planned>) {
    let mut upstream = Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let mut serving = Serving::start(&["--upstream", &url]);
    let mut wire = Wire::connect(serving.address).await;
    for Planned { name, limit_tokens, body, sent } in planned {
        let limit = format!("x-weir-max-input-tokens: {limit_tokens}\r\n");
        wire.send(chat(&limit, body.as_bytes())).await;
        let seen = upstream.next().await;
        assert!(seen.body == *sent, "{name}: {body}");
        seen.answer(FINE);
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
        serving.wait_for("weir::request");
    }
    serving.signal("-TERM");
    assert_eq!(serving.ended(), Some(0));
}

#[tokio::test]
async fn processes_send_what_the_planner_says() {
    let planned = std::thread::spawn(plan).join().expect("planning does not panic");
    assert!(planned.iter().any(|own| own.sent != own.body.as_bytes()));
    compare_with_process(planned.iter()).await;
    // The second process has no state of the first, and gets the longest histories first.
    compare_with_process(planned.iter().rev()).await;
}

/// Plans each request in this process.
fn plan() -> Vec<Planned> {
    let mut requests = Vec::new();
    let clients: Vec<Client> =
        clients().into_iter().filter(|client| CLIENTS.contains(&client.name)).collect();
    assert_eq!(clients.len(), CLIENTS.len());
    for client in clients {
        let (name, limit_tokens) = (client.name, client.limit_tokens);
        let own = client.requests.into_iter();
        requests.extend(own.map(|request| (name.to_owned(), limit_tokens, request.body)));
    }
    requests.extend(recorded());
    let weir = Weir::new();
    let planned = requests.into_iter().filter_map(|(name, limit_tokens, body)| {
        // Some recorded messages are too large for a share of their conversation.
        let planned = weir.plan(&body, limit_tokens).ok()?;
        let sent = planned.body.map_or_else(|| body.clone().into_bytes(), Vec::from);
        Some(Planned { name, limit_tokens, body, sent })
    });
    planned.collect()
}

/// Returns the last requests of recorded conversations, each with a limit of about a third of it.
fn recorded() -> Vec<(String, u64, String)> {
    let mut requests = Vec::new();
    for conversation in traces::all().into_iter().take(RECORDED) {
        let messages: Vec<String> = conversation.messages.iter().map(ToString::to_string).collect();
        let is_asked = |end: &usize| conversation.messages[end - 1]["role"] != "assistant";
        let ends: Vec<usize> = (1..=messages.len()).filter(is_asked).collect();
        let bytes: usize = messages.iter().map(String::len).sum();
        for end in &ends[ends.len().saturating_sub(LAST_REQUESTS)..] {
            let list = messages[..*end].join(",");
            let body = format!(r#"{{"model":"{MODEL}","messages":[{list}]}}"#);
            requests.push((conversation.id.clone(), bytes as u64 / 12, body));
        }
    }
    requests
}
