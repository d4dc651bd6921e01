//! Simulated applications, each with a history that changes in its own way. Every sent request is
//! valid and within the limit; a table lists how often compactions move.

use weir::proxy::plan::Planned;

use super::harness::Weir;
use super::judge::{Body, compare};
use super::simulated::{Client, Request, clients};
use super::valid;

/// One in this many requests is also planned by a second planner without caches.
const COLD_EVERY: usize = 10;

/// Results of one client.
#[derive(Debug, Default)]
struct Tally {
    requests: usize,
    /// Requests that were sent with fewer tokens than received.
    compacted: usize,
    /// Requests in which the caller itself changed more than the end of its history.
    rewritten: usize,
    /// Requests that do not extend the previously sent one, although the caller's history does,
    /// except for its last message.
    moved: usize,
    /// Growth of the histories in tokens.
    growth_tokens: u64,
    /// The smallest of the limits.
    limit_tokens: u64,
    conversations: usize,
    before_bytes: usize,
    /// Bytes of these that the next request repeats from the start.
    repeated_bytes: usize,
}

/// Request and its result, message by message.
struct Exchange {
    received: Vec<String>,
    sent: Vec<String>,
    received_tokens: u64,
}

fn raw_messages(body: &Body<'_>) -> Vec<String> {
    (0..body.messages().len()).map(|message| body.raw(message).to_owned()).collect()
}

fn common(left: &[String], right: &[String]) -> usize {
    left.iter().zip(right).take_while(|(own, other)| own == other).count()
}

/// Plans a request, and asserts that the result is valid, derived from the caller's, and within the
/// limit.
fn judged(weir: &Weir, client: &Client, request: &Request) -> Result<(Exchange, Planned), String> {
    let planned = weir.plan(&request.body, client.limit_tokens).map_err(|error| error.message)?;
    let received = Body::read(&request.body)?;
    let bytes = planned.body.as_deref().unwrap_or(request.body.as_bytes());
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let sent = Body::read(text)?;
    if let Some(fault) = valid::fault(&received).or_else(|| valid::fault(&sent)) {
        return Err(fault);
    }
    let kept = compare(&received, &sent)?.kept;
    if kept.last().map(|(own, _)| own + 1) != Some(received.messages().len()) {
        return Err("the last message is gone".to_owned());
    }
    let overhead = planned.received_tokens - received.tokens();
    let tokens = sent.tokens() + overhead;
    if tokens > planned.limit_tokens || tokens > planned.sent_tokens {
        return Err(format!("{tokens} tokens are sent: {planned:?}"));
    }
    let exchange = Exchange {
        received: raw_messages(&received),
        sent: raw_messages(&sent),
        received_tokens: planned.received_tokens,
    };
    Ok((exchange, planned))
}

impl Tally {
    fn add(&mut self, before: &Exchange, now: &Exchange) {
        self.growth_tokens += now.received_tokens.saturating_sub(before.received_tokens);
        self.before_bytes += before.sent.iter().map(String::len).sum::<usize>();
        let repeated = common(&before.sent, &now.sent);
        self.repeated_bytes += before.sent[..repeated].iter().map(String::len).sum::<usize>();
        let changed = before.received.len() - common(&before.received, &now.received);
        if changed > 1 {
            self.rewritten += 1;
        } else if repeated < before.sent.len() - changed {
            self.moved += 1;
        }
    }

    fn row(&self, client: &Client) -> String {
        let (name, most) = (client.name, self.most_moved(client));
        let per_request = self.moved as f64 / self.requests as f64;
        let repeated = 100 * self.repeated_bytes / self.before_bytes.max(1);
        let Self { requests, compacted, rewritten, moved, .. } = self;
        format!(
            "{name:31} {requests:>8} {compacted:>9} {rewritten:>9} {moved:>5} {per_request:>11.2} \
             {most:>7} {repeated:>8} %"
        )
    }

    /// Maximum number of moved compactions: one for each quarter of the limit that a conversation
    /// grows, and one for each time the caller rewrites its history or changes the room for
    /// messages.
    fn most_moved(&self, client: &Client) -> usize {
        let by_growth = (self.growth_tokens * 4 / self.limit_tokens) as usize;
        by_growth + self.conversations + self.rewritten + client.limit_changes
    }
}

fn run(client: &Client) -> Result<Tally, String> {
    let weir = Weir::new();
    let mut tally = Tally { limit_tokens: u64::MAX, ..Tally::default() };
    let mut earlier: Vec<Option<Exchange>> = Vec::new();
    for (index, request) in client.requests.iter().enumerate() {
        let (exchange, planned) =
            judged(&weir, client, request).map_err(|error| format!("request {index}: {error}"))?;
        if index % COLD_EVERY == COLD_EVERY - 1 {
            let cold = Weir::new().plan(&request.body, client.limit_tokens);
            if !cold.is_ok_and(|cold| cold == planned) {
                return Err(format!("request {index}: a cold planner sends something else"));
            }
        }
        tally.requests += 1;
        tally.limit_tokens = tally.limit_tokens.min(planned.limit_tokens);
        tally.compacted += usize::from(planned.action != "pass");
        earlier.resize_with(earlier.len().max(request.conversation + 1), || None);
        let before = &mut earlier[request.conversation];
        if let Some(before) = before {
            tally.add(before, &exchange);
        }
        *before = Some(exchange);
    }
    tally.conversations = earlier.len();
    Ok(tally)
}

#[test]
fn every_client_is_served() {
    println!(
        "{:31} requests compacted rewritten moved per request at most repeated",
        "client (cuts moved)"
    );
    for client in clients() {
        let tally = run(&client).unwrap_or_else(|error| panic!("{}: {error}", client.name));
        println!("{}", tally.row(&client));
        assert!(tally.compacted * 3 > tally.requests, "{}: the limit bites", client.name);
        assert!(tally.moved <= tally.most_moved(&client), "{}: cuts move too often", client.name);
    }
}
