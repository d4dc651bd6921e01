//! Routes under `/scripted/` through which another process reads the log and controls the server.
//!
//! Their requests are not logged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Response};
use serde_json::{Value, json};

use super::answer::Answer;
use super::body::{Dropped, Reply};
use super::log::Seen;
use super::routes::respond;
use super::{State, fault, locked};

const MAX_BODY_BYTES: usize = 1024 * 1024;

pub async fn answer(
    state: &Arc<State>,
    head: Parts,
    body: Incoming,
) -> Result<Response<Reply>, Dropped> {
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|_| Dropped)?.to_bytes();
    let query = head.uri.query().unwrap_or("");
    let answer = match (&head.method, head.uri.path()) {
        (&Method::GET, "/scripted/log") => {
            let with_bodies = query.split('&').any(|pair| pair == "bodies=1");
            Answer::json(200, &log(state, with_bodies))
        }
        (&Method::DELETE, "/scripted/log") => {
            state.log.clear();
            Answer::json(200, &json!({"cleared": true}))
        }
        (&Method::GET, "/scripted/wait") => {
            let number = query.strip_prefix("ended=").and_then(|number| number.parse().ok());
            let number: usize = number.unwrap_or(1);
            let ended = |log: &[Seen]| log.iter().filter(|seen| seen.ended()).count();
            state.log.wait_for(|log| ended(log) >= number).await;
            Answer::json(200, &json!({"ended": state.log.read(ended)}))
        }
        (&Method::POST, "/scripted/faults") => queue_faults(state, &body),
        (&Method::POST, "/scripted/release") => {
            state.released.send_modify(|count| *count += 1);
            Answer::json(200, &json!({"released": true}))
        }
        _ => Answer::json(404, &json!({"error": "no such control route"})),
    };
    Ok(respond(answer, state.log.unlogged()))
}

fn log(state: &State, with_bodies: bool) -> Value {
    let requests: Vec<Value> = state.log.read(|log| {
        let entries = log.iter();
        entries.map(|seen| seen.to_json(with_bodies)).collect()
    });
    json!({
        "connections": state.connections.load(Ordering::Relaxed),
        "requests": requests,
    })
}

fn queue_faults(state: &State, body: &[u8]) -> Answer {
    let names = serde_json::from_slice::<Vec<String>>(body).map_err(|error| error.to_string());
    match names.and_then(|names| fault::queue(&names)) {
        Ok(faults) => {
            locked(&state.faults).extend(faults);
            Answer::json(200, &json!({"queued": true}))
        }
        Err(problem) => Answer::json(400, &json!({"error": problem})),
    }
}
