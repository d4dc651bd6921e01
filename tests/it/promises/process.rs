//! Promise 4 across processes: two weirs, one after the other, send what the planner in this
//! process would, byte for byte.

use super::harness::Weir;
use super::simulated::{Client, clients};
use crate::cli::Serving;
use crate::server::harness::{FINE, Upstream, Wire, chat};

/// The clients whose requests go through; all use models that weir knows without being told.
const CLIENTS: [&str; 4] =
    ["agent, appends only", "edited message", "growing tool list", "two agents, one system prompt"];

/// Sends requests through a new process of weir and compares what arrives; how many there were.
async fn compare_with_process<'a>(
    sent: impl Iterator<Item = (&'a Client, &'a str, &'a [u8])>,
) -> usize {
    let mut upstream = Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let mut serving = Serving::start(&["--upstream", &url]);
    let mut wire = Wire::connect(serving.address).await;
    let mut requests = 0;
    for (client, body, wanted) in sent {
        let limit = format!("x-weir-max-input-tokens: {}\r\n", client.limit_tokens);
        wire.send(chat(&limit, body)).await;
        let seen = upstream.next().await;
        assert!(seen.body == wanted, "{}: {body}", client.name);
        seen.answer(FINE);
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
        serving.wait_for("weir::request");
        requests += 1;
    }
    serving.signal("-TERM");
    assert_eq!(serving.ended(), Some(0));
    requests
}

#[tokio::test]
async fn processes_send_what_the_planner_says() {
    let clients: Vec<Client> =
        clients().into_iter().filter(|client| CLIENTS.contains(&client.name)).collect();
    assert_eq!(clients.len(), CLIENTS.len());
    let planned = std::thread::spawn(move || plan(clients)).join().expect("every request fits");
    let all: Vec<_> = planned
        .iter()
        .flat_map(|(client, bodies)| {
            let requests = client.requests.iter().zip(bodies);
            requests.map(move |(request, sent)| (client, request.body.as_str(), sent.as_slice()))
        })
        .collect();
    assert_eq!(compare_with_process(all.iter().copied()).await, all.len());
    // The second process knows nothing of the first, and meets the longest histories first.
    assert_eq!(compare_with_process(all.iter().copied().rev()).await, all.len());
}

/// What the planner in this process sends of each request.
fn plan(clients: Vec<Client>) -> Vec<(Client, Vec<Vec<u8>>)> {
    let weir = Weir::new();
    let sent = |client: &Client| {
        let bodies = client.requests.iter().map(|request| {
            let planned = weir.plan(&request.body, client.limit_tokens).expect("it fits");
            planned.body.map_or_else(|| request.body.clone().into_bytes(), Vec::from)
        });
        bodies.collect::<Vec<_>>()
    };
    let planned = clients.into_iter().map(|client| {
        let bodies = sent(&client);
        (client, bodies)
    });
    planned.collect()
}
