//! From a request to an answer: paths, keys, logging, and the application of faults.
//!
//! `chat.rs`, `extras.rs` and `files.rs` decide on the contents of answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, header};
use xxhash_rust::xxh3::xxh3_64;

use super::answer::{self, Answer, Content};
use super::body::{Dropped, Reply, Step, gzip};
use super::chat::{self, Asker, Rejection};
use super::fault::{self, Fault};
use super::log::Ticket;
use super::overflow::{self, Overflow};
use super::script::SCRIPT_NAME;
use super::validate::Refusal;
use super::{Link, State, control, extras, files, locked};

const FAULT_NAME: &str = "x-upstream-fault";
const CONTEXT_NAME: &str = "x-upstream-context-tokens";
const COMPRESS_NAME: &str = "x-upstream-compress";
/// Larger bodies are judged off the async threads.
const INLINE_BYTES: usize = 32 * 1024;
/// Turns given to the connection to write a piece before the next.
const BREATHS: u8 = 4;
/// HTTP/2 drops data that is not yet written when a stream is cut, so a cut is delayed.
const PAUSE_BEFORE_CUT: Duration = Duration::from_millis(20);

/// Request whose body has been read.
pub struct Call {
    pub head: Parts,
    pub body: Bytes,
    /// The path after its base, split at slashes.
    pub route: Vec<String>,
    pub deployment: Option<String>,
    /// The same for the same body.
    pub id: u64,
}

impl Call {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.head.uri.query()?.split('&');
        let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    fn credential(&self) -> Option<&str> {
        match self.header("authorization") {
            Some(value) => Some(value.strip_prefix("Bearer ").unwrap_or(value)),
            None => self.header("api-key"),
        }
    }
}

pub async fn answer(
    state: Arc<State>,
    link: Arc<Link>,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Dropped> {
    let (head, body) = request.into_parts();
    if head.uri.path().starts_with("/scripted/") {
        return control::answer(&state, head, body).await;
    }
    // The hold begins here, so that a release after the request is logged is never missed.
    let mut released = state.released.subscribe();
    let mut ticket = state.log.open(&head, link.number);
    if link.close_on_next.load(Ordering::Acquire) {
        ticket.cut();
        link.cut(false);
        return Err(Dropped);
    }
    let body = Limited::new(body, state.options.max_body_bytes);
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let refusal = Refusal::new(413, "The request body is too large.");
            return Ok(respond(refused(&refusal), ticket));
        }
        // The ticket, dropped open, records that the caller left.
        Err(_) => return Err(Dropped),
    };
    ticket.body(&body);
    let (route, deployment) = split_path(head.uri.path());
    let call = Call { id: xxh3_64(&body), head, body, route, deployment };
    let (answer, fault) = decide(&state, &call, &ticket).await;
    match &fault {
        Some(Fault::Reset | Fault::Close) => {
            ticket.cut();
            link.cut(fault == Some(Fault::Reset));
            return Err(Dropped);
        }
        Some(Fault::CloseIdle) => link.close_on_next.store(true, Ordering::Release),
        Some(Fault::StallHead) => std::future::pending().await,
        // The sender lives in the state, which lives at least as long as this.
        Some(Fault::HoldHead) => released.changed().await.unwrap_or_default(),
        _ => {}
    }
    let mut answer = compressed(answer, &state, &call);
    let request_id = format!("req_{:016x}", call.id);
    answer.headers.push(("x-request-id", request_id));
    ticket.status(answer.status);
    if call.head.method == Method::HEAD {
        // No body follows, so the log entry ends with the head.
        ticket.complete();
    }
    let held = Box::pin(async move { released.changed().await.unwrap_or_default() });
    Ok(respond_with(answer, fault.as_ref(), ticket, held))
}

fn compressed(mut answer: Answer, state: &State, call: &Call) -> Answer {
    let wanted = state.options.compress || call.header(COMPRESS_NAME).is_some();
    let names = call.header("accept-encoding").unwrap_or("");
    if !wanted || !names.contains("gzip") {
        return answer;
    }
    let packed = match &answer.content {
        Content::Whole(bytes) if !bytes.is_empty() => {
            Content::Whole(gzip(std::slice::from_ref(bytes)).concat().into())
        }
        Content::Events(events) => Content::Events(gzip(events)),
        _ => return answer,
    };
    answer.content = packed;
    answer.headers.push(("content-encoding", "gzip".to_owned()));
    answer
}

fn refused(refusal: &Refusal) -> Answer {
    Answer::json(refusal.status, &refusal.body())
}

/// Decides on the answer, and the fault to apply to it.
async fn decide(state: &Arc<State>, call: &Call, ticket: &Ticket) -> (Answer, Option<Fault>) {
    let fault = match call.header(FAULT_NAME).map(fault::parse) {
        Some(Ok(fault)) => Some(fault),
        Some(Err(problem)) => return (refused(&Refusal::invalid(problem)), None),
        None => locked(&state.faults).pop_front().flatten(),
    };
    let path = call.head.uri.path();
    if state.options.only_v1 && !path.starts_with("/v1/") {
        return (refused(&Refusal::new(404, format!("Nothing at {path}."))), fault);
    }
    if let Err(refusal) = check_key(state, call) {
        return (refused(&refusal), None);
    }
    let route: Vec<&str> = call.route.iter().map(String::as_str).collect();
    if route == ["chat", "completions"] && call.head.method == Method::POST {
        return complete(state, call, fault, ticket).await;
    }
    let answer = match files::answer(state, call, &route) {
        Some(answer) => answer,
        None => extras::answer(state, call, &route),
    };
    let answer = answer.unwrap_or_else(|refusal| refused(&refusal));
    (apply(answer, fault.as_ref(), None), fault)
}

/// Judges a chat completion and answers it.
async fn complete(
    state: &Arc<State>,
    call: &Call,
    fault: Option<Fault>,
    ticket: &Ticket,
) -> (Answer, Option<Fault>) {
    let context_tokens = match call.header(CONTEXT_NAME).map(str::parse) {
        None => state.options.context_tokens,
        Some(Ok(tokens)) => tokens,
        Some(Err(_)) => {
            let refusal = Refusal::invalid(format!("{CONTEXT_NAME} is not a number"));
            return (refused(&refusal), fault);
        }
    };
    let asker = Asker {
        deployment: call.deployment.clone(),
        credential: call.credential().unwrap_or("").to_owned(),
        script: call.header(SCRIPT_NAME).map(str::to_owned),
        fault: fault.clone(),
        context_tokens,
    };
    let judged = if call.body.len() <= INLINE_BYTES {
        chat::judge(state, &call.body, asker)
    } else {
        let (state, body) = (state.clone(), call.body.clone());
        tokio::task::spawn_blocking(move || chat::judge(&state, &body, asker))
            .await
            .expect("judging does not panic and is never cancelled")
    };
    match judged {
        Ok(mut verdict) => {
            if let Some(say) = &state.options.say
                && verdict.script.is_silent()
            {
                verdict.script.text = Some(say.replace("{id}", &format!("{:016x}", call.id)));
            }
            let (answer, completion_tokens) = answer::chat(&verdict, call.id);
            let size = Overflow {
                prompt_tokens: verdict.prompt_tokens,
                output_tokens: 0,
                context_tokens: verdict.context_tokens,
            };
            ticket.counted(verdict.prompt_tokens, Some(verdict.cached_tokens));
            ticket.said(completion_tokens);
            let answer = apply(answer, verdict.fault.as_ref(), Some(size));
            (answer, verdict.fault)
        }
        Err(Rejection::TooLong(size)) => {
            ticket.counted(size.prompt_tokens, None);
            let answer = too_long(&state.options.overflow_style, size);
            (apply(answer, fault.as_ref(), Some(size)), fault)
        }
        Err(Rejection::Refused(refusal)) => (apply(refused(&refusal), fault.as_ref(), None), fault),
    }
}

fn too_long(vendor: &str, size: Overflow) -> Answer {
    // Some vendors report it within a stream that began well.
    let within = [("_event", ""), ("_error_event", "event: error\n")];
    for (end, name) in within.into_iter().rev() {
        if let Some(vendor) = vendor.strip_suffix(end)
            && let (_, Some(body)) = overflow::refusal(vendor, size)
        {
            return Answer::events(vec![format!("{name}data: {body}\n\n").into()]);
        }
    }
    match overflow::refusal(vendor, size) {
        (status, Some(body)) => Answer::json(status, &body),
        (status, None) => Answer::whole(status, "application/json", ""),
    }
}

/// Replaces this answer by another if the fault requires that.
fn apply(answer: Answer, fault: Option<&Fault>, size: Option<Overflow>) -> Answer {
    match fault {
        Some(Fault::Status(code, retry_after)) => {
            let mut answer = Answer::json(*code, &fault::status_body(*code));
            if let Some(seconds) = retry_after {
                answer.headers.push(("retry-after", seconds.clone()));
            }
            answer
        }
        Some(Fault::Empty200) => Answer::whole(200, "application/json", ""),
        Some(Fault::WrongContentType) => Answer { content_type: "text/html", ..answer },
        Some(Fault::Overflow(vendor)) => {
            let unknown = Overflow { prompt_tokens: 0, output_tokens: 0, context_tokens: 0 };
            too_long(vendor, size.unwrap_or(unknown))
        }
        Some(Fault::Garbage) => {
            let content = match answer.content {
                Content::Events(mut events) => {
                    let broken = Bytes::from_static(b"data: {\"choices\": [{\"delta\": <oops>\n\n");
                    events.insert(1.min(events.len()), broken);
                    Content::Events(events)
                }
                _ => Content::Whole(Bytes::from_static(b"<oops> this is no JSON {")),
            };
            Answer { content, ..answer }
        }
        _ => answer,
    }
}

type Held = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends an answer without faults.
pub fn respond(answer: Answer, ticket: Ticket) -> Response<Reply> {
    respond_with(answer, None, ticket, Box::pin(std::future::ready(())))
}

fn respond_with(
    answer: Answer,
    fault: Option<&Fault>,
    ticket: Ticket,
    held: Held,
) -> Response<Reply> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    ticket.status(status.as_u16());
    let mut builder = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, answer.content_type)
        .header("openai-version", "2020-10-01")
        .header("openai-processing-ms", "1")
        .header("x-ratelimit-limit-requests", "10000")
        .header("x-ratelimit-remaining-requests", "9999");
    for (name, value) in &answer.headers {
        builder = builder.header(*name, value);
    }
    let (steps, length) = match answer.content {
        Content::Pattern { bytes, chunked } => {
            let steps = if bytes == 0 { vec![] } else { vec![Step::Pattern(bytes)] };
            (steps, (!chunked).then_some(bytes))
        }
        Content::Whole(bytes) if bytes.is_empty() => (vec![], Some(0)),
        Content::Whole(bytes) => {
            let length = Some(bytes.len() as u64);
            let middle = bytes.len() / 2;
            let pieces = vec![bytes.slice(..middle), bytes.slice(middle..)];
            (interfere(pieces, fault, held).unwrap_or_else(|| vec![Step::Send(bytes)]), length)
        }
        Content::Events(events) => {
            let whole = |events: Vec<Bytes>| events.into_iter().map(Step::Send).collect();
            let steps = interfere(events.clone(), fault, held);
            (steps.unwrap_or_else(|| whole(events)), None)
        }
    };
    let reply = Reply::new(steps, length, ticket);
    builder.body(reply).expect("status and headers are made from valid parts")
}

/// Returns the steps of an answer with a fault, or `None` if it has none.
fn interfere(pieces: Vec<Bytes>, fault: Option<&Fault>, held: Held) -> Option<Vec<Step>> {
    let upto = |count: &usize| (*count).min(pieces.len() - 1);
    let mut steps = Vec::with_capacity(pieces.len() + 4);
    let send = |piece: &Bytes| Step::Send(piece.clone());
    match fault? {
        Fault::StallAfter(count) => {
            steps.extend(pieces[..upto(count)].iter().map(send));
            steps.push(Step::Stall);
        }
        Fault::HoldAfter(count) => {
            let (before, after) = pieces.split_at(upto(count));
            steps.extend(before.iter().map(send));
            steps.push(Step::Hold(held));
            steps.extend(after.iter().map(send));
        }
        Fault::TruncateAfter(count) => {
            let (before, after) = pieces.split_at(upto(count));
            steps.extend(before.iter().map(send));
            let half = after.first().map(|piece| piece.slice(..piece.len() / 2));
            steps.extend(half.filter(|half| !half.is_empty()).map(Step::Send));
            let pause = Box::pin(tokio::time::sleep(PAUSE_BEFORE_CUT));
            steps.extend([Step::Hold(pause), Step::Cut]);
        }
        Fault::HalfUtf8 => {
            for piece in pieces {
                // A byte with its high bits `10` continues a character.
                let inside = piece.iter().position(|byte| byte & 0xC0 == 0x80);
                let at = inside.unwrap_or(piece.len());
                steps.extend([Step::Send(piece.slice(..at)), Step::Breathe(BREATHS)]);
                if at < piece.len() {
                    steps.push(Step::Send(piece.slice(at..)));
                }
            }
        }
        _ => return None,
    }
    Some(steps)
}

fn check_key(state: &State, call: &Call) -> Result<(), Refusal> {
    let Some(required) = &state.options.require_key else {
        return Ok(());
    };
    match call.credential() {
        Some(given) if given == required => Ok(()),
        Some(_) => {
            let message = "Incorrect API key provided. You can find your API key at https://platform.openai.com/account/api-keys.";
            Err(Refusal::new(401, message).code("invalid_api_key"))
        }
        None => Err(Refusal::new(
            401,
            "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
        )),
    }
}

/// Returns the route after the base path, and the deployment if an Azure path names one.
fn split_path(path: &str) -> (Vec<String>, Option<String>) {
    let segments = |rest: &str| {
        let parts = rest.split('/').filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect::<Vec<_>>()
    };
    if let Some(rest) = path.strip_prefix("/openai/deployments/") {
        let (deployment, rest) = rest.split_once('/').unwrap_or((rest, ""));
        return (segments(rest), Some(deployment.to_owned()));
    }
    let bases = ["/openai/v1", "/api/v1", "/v1beta/openai", "/v1"];
    let rest = bases.iter().find_map(|base| {
        let rest = path.strip_prefix(base)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    });
    (segments(rest.unwrap_or(path)), None)
}
