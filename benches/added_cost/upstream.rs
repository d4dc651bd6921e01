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

const PLAIN: &str = r#"{"id":"chatcmpl-bench","object":"chat.completion","created":1760000000,"model":"gpt-4o-2024-08-06","choices":[{"index":0,"message":{"role":"assistant","content":"The parser now keeps the span of every message, so an edit can be spliced without touching its neighbours. All tests pass; the slowest takes 140 ms.","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1200,"completion_tokens":34,"total_tokens":1234,"prompt_tokens_details":{"cached_tokens":1024,"audio_tokens":0}},"system_fingerprint":"fp_bench"}"#;

const EVENT: &str = r#"{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1760000000,"model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":null}"#;

const USAGE_EVENT: &str = r#"{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1760000000,"model":"gpt-4o-2024-08-06","choices":[],"usage":{"prompt_tokens":1200,"completion_tokens":31,"total_tokens":1231,"prompt_tokens_details":{"cached_tokens":1024,"audio_tokens":0}}}"#;

/// Serves until the process is ended; prints its address as the first line on stdout.
pub fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening on http://{}", listener.local_addr()?);
    io::stdout().flush()?;
    let answers: &'static Answers = Box::leak(Box::new(Answers::new()));
    for stream in listener.incoming() {
        let stream = stream?;
        // If a connection breaks, there is no peer to report to.
        thread::spawn(move || converse(stream, answers));
    }
    Ok(())
}

/// Bytes of both answers, built once.
struct Answers {
    plain: Vec<u8>,
    stream_head: Vec<u8>,
    event: Vec<u8>,
    stream_end: Vec<u8>,
}

impl Answers {
    fn new() -> Self {
        let length = PLAIN.len();
        let plain = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             x-request-id: req_bench\r\n\r\n{PLAIN}"
        );
        let stream_head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                           transfer-encoding: chunked\r\nx-request-id: req_bench\r\n\r\n";
        let stream_end = format!("{}{}0\r\n\r\n", chunk(USAGE_EVENT), chunk("[DONE]"));
        Self {
            plain: plain.into_bytes(),
            stream_head: stream_head.as_bytes().to_vec(),
            event: chunk(EVENT).into_bytes(),
            stream_end: stream_end.into_bytes(),
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

fn chunk(data: &str) -> String {
    let length = "data: ".len() + data.len() + "\n\n".len();
    format!("{length:x}\r\ndata: {data}\n\n\r\n")
}

/// Answers one connection's requests until the peer closes it.
fn converse(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let Some(streamed) = read_request(&mut stream, &mut buffer)? else {
            return Ok(());
        };
        answers.write(&mut stream, streamed)?;
    }
}

/// Reads one request to its end; returns whether it asks for a stream, or `None` at end of file.
fn read_request(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<bool>> {
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
    Ok(Some(find(&start, STREAM_MARK).is_some()))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
