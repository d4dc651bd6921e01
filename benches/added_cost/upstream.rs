//! Canned upstream of the load: reads a request's body to its end, then writes a fixed answer,
//! plain or as server-sent events. Blocking threads and fixed bytes, because it shares the machine
//! with the measured programs. It checks nothing: `examples/` has servers that do.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Events in a streamed answer, without the final `[DONE]`.
pub const EVENTS: usize = 32;

/// Pause between two events, so that each arrives separately, as from a model. Without pauses they
/// would merge into a few reads, and their number would depend on the proxy's speed.
const EVENT_GAP: Duration = Duration::from_micros(200);

/// A streamed request has this text within its first bytes, where the bench writes it.
const STREAM_MARK: &[u8] = b"\"stream\":true";
const STREAM_MARK_WITHIN_BYTES: usize = 512;

/// Last event of a complete stream, or a part of it, in each protocol.
pub const ENDS: [&str; 3] = ["[DONE]", "response.completed", "message_stop"];

/// Answers in one protocol.
struct Form {
    /// Part of the path of requests in it.
    path: &'static str,
    plain: &'static str,
    /// Text before the repeated event, that event, and the text after it.
    streamed: [&'static str; 3],
}

/// The first is that of any other path.
const FORMS: [Form; 3] = [
    Form {
        path: "/chat/completions",
        plain: r#"{"id":"chatcmpl-bench","object":"chat.completion","created":1760000000,"model":"gpt-4o-2024-08-06","choices":[{"index":0,"message":{"role":"assistant","content":"The parser now keeps the span of every message, so an edit can be spliced without touching its neighbours. All tests pass; the slowest takes 140 ms.","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1200,"completion_tokens":34,"total_tokens":1234,"prompt_tokens_details":{"cached_tokens":1024,"audio_tokens":0}},"system_fingerprint":"fp_bench"}"#,
        streamed: [
            "",
            "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-2024-08-06\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n",
            "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-2024-08-06\",\"choices\":[],\"usage\":{\"prompt_tokens\":1200,\"completion_tokens\":31,\"total_tokens\":1231,\"prompt_tokens_details\":{\"cached_tokens\":1024,\"audio_tokens\":0}}}\n\ndata: [DONE]\n\n",
        ],
    },
    Form {
        path: "/responses",
        plain: r#"{"id":"resp_bench","object":"response","created_at":1760000000,"status":"completed","error":null,"incomplete_details":null,"model":"gpt-4o-2024-08-06","output":[{"id":"msg_bench","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"The parser now keeps the span of every message, so an edit can be spliced without touching its neighbours. All tests pass; the slowest takes 140 ms.","annotations":[]}]}],"usage":{"input_tokens":1200,"input_tokens_details":{"cached_tokens":1024},"output_tokens":34,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1234}}"#,
        streamed: [
            "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_bench\",\"object\":\"response\",\"status\":\"in_progress\",\"model\":\"gpt-4o-2024-08-06\",\"output\":[],\"usage\":null}}\n\n",
            "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":4,\"item_id\":\"msg_bench\",\"output_index\":0,\"content_index\":0,\"delta\":\" token\",\"logprobs\":[]}\n\n",
            "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":40,\"response\":{\"id\":\"resp_bench\",\"object\":\"response\",\"status\":\"completed\",\"model\":\"gpt-4o-2024-08-06\",\"output\":[],\"usage\":{\"input_tokens\":1200,\"input_tokens_details\":{\"cached_tokens\":1024},\"output_tokens\":31,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":1231}}}\n\n",
        ],
    },
    Form {
        path: "/messages",
        plain: r#"{"id":"msg_bench","type":"message","role":"assistant","model":"gpt-4o-2024-08-06","content":[{"type":"text","text":"The parser now keeps the span of every message, so an edit can be spliced without touching its neighbours. All tests pass; the slowest takes 140 ms."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":176,"cache_creation_input_tokens":0,"cache_read_input_tokens":1024,"output_tokens":34}}"#,
        streamed: [
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_bench\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"gpt-4o-2024-08-06\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":176,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":1024,\"output_tokens\":1}}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}}\n\n",
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":31}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ],
    },
];

/// Serves until the process is ended; prints its address as the first line on stdout.
pub fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening on http://{}", listener.local_addr()?);
    io::stdout().flush()?;
    let answers: &'static [Answers; 3] = Box::leak(Box::new(FORMS.map(|form| Answers::new(&form))));
    for stream in listener.incoming() {
        let stream = stream?;
        // If a connection breaks, there is no peer to report to.
        thread::spawn(move || converse(stream, answers));
    }
    Ok(())
}

/// Bytes of both answers, built once.
struct Answers {
    path: &'static str,
    plain: Vec<u8>,
    stream_head: Vec<u8>,
    event: Vec<u8>,
    stream_end: Vec<u8>,
}

impl Answers {
    fn new(Form { path, plain, streamed }: &Form) -> Self {
        let length = plain.len();
        let plain = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             x-request-id: req_bench\r\n\r\n{plain}"
        );
        let stream_head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                           transfer-encoding: chunked\r\nx-request-id: req_bench\r\n\r\n";
        let [start, event, end] = streamed;
        let start = if start.is_empty() { String::new() } else { chunk(start) };
        Self {
            path,
            plain: plain.into_bytes(),
            stream_head: [stream_head, &start].concat().into_bytes(),
            event: chunk(event).into_bytes(),
            stream_end: format!("{}0\r\n\r\n", chunk(end)).into_bytes(),
        }
    }

    fn write(&self, stream: &mut TcpStream, streamed: bool) -> io::Result<()> {
        if !streamed {
            return stream.write_all(&self.plain);
        }
        stream.write_all(&[self.stream_head.as_slice(), &self.event].concat())?;
        for _ in 1..EVENTS {
            thread::sleep(EVENT_GAP);
            stream.write_all(&self.event)?;
        }
        stream.write_all(&self.stream_end)
    }
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// Answers one connection's requests until the peer closes it.
fn converse(mut stream: TcpStream, answers: &[Answers; 3]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let Some(request) = read_request(&mut stream, &mut buffer)? else {
            return Ok(());
        };
        let own = answers.iter().find(|own| request.line.contains(own.path));
        own.unwrap_or(&answers[0]).write(&mut stream, request.streamed)?;
    }
}

/// Request, as far as it decides the answer.
struct Request {
    /// Its first line, in lower case.
    line: String,
    streamed: bool,
}

/// Reads one request to its end; `None` at end of file.
fn read_request(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<Request>> {
    let mut filled = 0;
    let head_end = loop {
        if let Some(end) = find(&buffer[..filled], b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut buffer[filled..])? {
            0 => return Ok(None),
            count => filled += count,
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).to_ascii_lowercase();
    let mut start = buffer[head_end..filled].to_vec();
    let length = head
        .split_once("content-length:")
        .and_then(|(_, rest)| rest.split("\r\n").next()?.trim().parse::<usize>().ok());
    let chunked = head.contains("transfer-encoding: chunked");
    let mut received = start.len();
    let mut tail = start.clone();
    loop {
        let ended = match length {
            Some(length) => received >= length,
            None => !chunked || tail.ends_with(b"0\r\n\r\n"),
        };
        if ended {
            break;
        }
        let count = stream.read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received += count;
        if start.len() < STREAM_MARK_WITHIN_BYTES {
            start.extend_from_slice(&buffer[..count.min(STREAM_MARK_WITHIN_BYTES)]);
        }
        if chunked {
            tail.extend_from_slice(&buffer[count.saturating_sub(8)..count]);
            tail.drain(..tail.len().saturating_sub(8));
        }
    }
    start.truncate(STREAM_MARK_WITHIN_BYTES);
    let line = head.lines().next().unwrap_or_default().to_owned();
    Ok(Some(Request { line, streamed: find(&start, STREAM_MARK).is_some() }))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
