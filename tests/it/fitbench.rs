//! FitBench over sockets: the bounds and the program itself on built-in conversations.

#[path = "../../examples/fitbench/main.rs"]
#[expect(dead_code, reason = "its `main` is not called, its command is")]
mod program;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use program::bench::{self, Kind, Outcome, Plan, Proxy};
use weir_bench::scores::Row;
use weir_bench::{bounds, generated};
use weir_eval::Budget;

/// Runs these proxies over a small set.
async fn run(proxies: Vec<Proxy>, limits: &[Budget]) -> Outcome {
    let mut cases = generated::conversations(2, 1);
    cases.truncate(1);
    cases.extend(bench::planted(2));
    let plan = Plan {
        proxies,
        cases: cases.into_iter().map(Arc::new).collect(),
        limits: limits.to_vec(),
        seed: 2,
        upstream_port: 0,
        write_price: 1.0,
        answer: crate::eventually::DEADLINE,
    };
    let outcome = run_plan(&plan).await;
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    outcome
}

async fn run_plan(plan: &Plan) -> Outcome {
    let outcome = RefCell::new(Outcome::default());
    let add = |event: bench::Event<'_>| outcome.borrow_mut().add(&event, &plan.limits);
    bench::run(plan, &add).await.expect("the bench runs");
    let outcome = outcome.into_inner();
    assert_eq!(bounds::broken(&outcome.rows, &outcome.decay), [""; 0]);
    outcome
}

fn row<'a>(outcome: &'a Outcome, proxy: &str) -> &'a Row {
    outcome.rows.iter().find(|row| row.proxy == proxy).expect("it was judged")
}

#[tokio::test(flavor = "multi_thread")]
async fn weir_stands_between_the_bounds() {
    let weir = Proxy {
        name: "weir".to_owned(),
        kind: Kind::Command(format!(
            "exec '{}' serve --listen 127.0.0.1:{{port}} --upstream {{upstream}} --store :memory:",
            env!("CARGO_BIN_EXE_weir")
        )),
        limit_header: Some("x-weir-max-input-tokens".to_owned()),
    };
    let limits = [Budget::Percent(30), Budget::Percent(50)];
    let outcome = run(vec![weir], &limits).await;
    for (rows, limit) in outcome.rows.chunks(4).zip(limits) {
        let [nothing, oracle, least, weir] = rows else { panic!("four rows for each limit") };
        let names = [nothing, oracle, least, weir].map(|own| own.proxy.as_str());
        assert_eq!(names, ["nothing", "oracle", "drop-all", "weir"]);
        assert!(rows.iter().all(|own| own.limit == limit.to_string()));
        assert_between(nothing, oracle, least, weir);
    }
    assert_eq!(outcome.decay.len(), 4);
    for (proxy, steps) in &outcome.decay {
        assert!(steps.iter().all(|step| step.facts.of == 20), "{proxy}");
    }
}

/// Asserts that every column of weir's row is between those of the bounds.
fn assert_between(nothing: &Row, oracle: &Row, least: &Row, weir: &Row) {
    for own in [nothing, oracle, least, weir] {
        assert_eq!(own.answered, Some(1.0), "{}", own.proxy);
        assert_eq!(own.valid, Some(1.0), "{}: {:?}", own.proxy, own.problems);
        assert_eq!(own.unchanged, Some(1.0), "{}", own.proxy);
        assert_eq!((own.second, own.restarted), (Some(1.0), Some(1.0)), "{}", own.proxy);
        assert_eq!(own.extra.calls, 0, "{}", own.proxy);
        // Nobody sends fewer tokens than the least, more than all, or extends the last request more
        // often than all do.
        assert!(least.sent_per_full <= own.sent_per_full, "{own:?}");
        assert!(own.sent_per_full <= nothing.sent_per_full, "{own:?}");
        assert!(own.prefix <= nothing.prefix && own.cache_hit <= nothing.cache_hit, "{own:?}");
        assert!(least.billed <= own.billed, "{own:?}");
    }
    for (((column, best), (_, worst)), (_, own)) in
        oracle.retention().into_iter().zip(least.retention()).zip(weir.retention())
    {
        assert_eq!(best, Some(1.0), "{column}");
        // A share cannot be above the best, which is all.
        assert!(worst < best && worst < own, "{column}: {worst:?} {own:?}");
    }
    assert_eq!(
        (nothing.same_bytes, nothing.over, nothing.billed),
        (Some(1.0), Some(1.0), Some(1.0))
    );
    assert_eq!((nothing.prefix, nothing.compaction_ms_p50), (Some(1.0), None));
    assert_eq!((least.over, weir.over), (Some(0.0), Some(0.0)));
    assert!(weir.compaction_ms_p50.is_some() && weir.prefix > Some(0.5), "{weir:?}");
    assert!(weir.billed < nothing.billed && weir.deep > Some(0.5), "{weir:?}");
}

/// Proxy in Python that asks the model for a summary and keeps the last turn.
const SUMMARISER: &str = r#"
import json, os, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
URL, LIMIT = os.environ["UPSTREAM_URL"], int(os.environ["LIMIT_TOKENS"])
def post(body):
    request = urllib.request.Request(URL + "/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer: return answer.read()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.reply(b"{}")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        messages = body["messages"]
        if sum(len(json.dumps(own)) for own in messages) > LIMIT * 3:
            last = len(messages) - 1
            while messages[last]["role"] == "tool": last -= 1
            ask = messages[:last] + [{"role": "user", "content": "Summarise the conversation."}]
            said = json.loads(post({"model": "small", "messages": ask}))["choices"][0]["message"]
            body["messages"] = messages[:1] + [{"role": "user", "content": said["content"]}] + messages[last:]
        self.reply(post(body))
    def reply(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_proxys_own_are_counted_and_billed() {
    let folder = crate::folder::Folder::new();
    let path = folder.write("summariser.py", SUMMARISER);
    let proxy = Proxy {
        name: "summariser".to_owned(),
        kind: Kind::Command(format!("exec python3 '{}'", path)),
        limit_header: None,
    };
    let outcome = run(vec![proxy], &[Budget::Percent(50)]).await;
    let [least, own] = ["drop-all", "summariser"].map(|name| row(&outcome, name));
    assert_eq!((own.answered, own.valid), (Some(1.0), Some(1.0)), "{:?}", own.problems);
    assert!(own.extra.calls > 10 && own.extra.input_tokens > 10_000, "{:?}", own.extra);
    assert!(own.extra_billed > Some(0.1) && own.billed > least.billed, "{own:?}");
    assert!(own.deep >= least.deep && own.rules < Some(0.5), "{own:?}");
}

/// Proxy in Python that keeps the system messages and the last turn. In requests of an even number of turns
/// it offers a recall tool, and answers its calls by the number of a message.
const RECALLER: &str = r#"
import json, os, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
URL, LIMIT = os.environ["UPSTREAM_URL"], int(os.environ["LIMIT_TOKENS"])
TOOL = {"type": "function", "function": {"name": "recall", "parameters": {"type": "object",
    "properties": {"message": {"type": "integer"}}}}}
def post(body):
    request = urllib.request.Request(URL + "/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer: return answer.read()
def said(message):
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
    return "\n".join([message.get("content") or "", *calls])
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.reply(b"{}")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        messages = body["messages"]
        last = len(messages) - 1
        while messages[last]["role"] == "tool": last -= 1
        if sum(len(json.dumps(own)) for own in messages) > LIMIT * 2:
            body["messages"] = messages[:1] + messages[last:]
        if sum(own["role"] == "assistant" for own in messages) % 2:
            return self.reply(post(body))
        body["tools"] = body.get("tools", []) + [TOOL]
        while True:
            answer = post(body)
            message = json.loads(answer)["choices"][0]["message"]
            calls = [own for own in message.get("tool_calls") or [] if own["function"]["name"] == "recall"]
            if not calls: return self.reply(answer)
            body["messages"] = body["messages"] + [message]
            for call in calls:
                asked = messages[json.loads(call["function"]["arguments"])["message"]]
                body["messages"].append({"role": "tool", "tool_call_id": call["id"], "content": said(asked)})
    def reply(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_may_return_is_reached_only_where_it_is_offered() {
    let folder = crate::folder::Folder::new();
    let path = folder.write("recaller.py", RECALLER);
    let proxy = Proxy {
        name: "recaller".to_owned(),
        kind: Kind::Command(format!("exec python3 '{}'", path)),
        limit_header: None,
    };
    let outcome = run(vec![proxy], &[Budget::Percent(50)]).await;
    let [least, own] = ["drop-all", "recaller"].map(|name| row(&outcome, name));
    assert_eq!((own.answered, own.ctx, own.extra.calls), (Some(1.0), least.ctx, 0), "{own:?}");
    assert_eq!((least.reach, least.offered.kept), (least.ctx, 0));
    assert_eq!((own.recalled.kept, own.recalled.of), (6, 6), "every value asked for came back");
    let (offered, ctx) = (own.offered.value().expect("values"), own.ctx.expect("values"));
    assert!(offered > 0.2 && offered < 0.8, "{:?}", own.offered);
    assert_eq!(own.reach, Some(ctx + (1.0 - ctx) * offered));
}

#[tokio::test(flavor = "multi_thread")]
async fn weirs_recall_tool_is_asked_for_missing_values() {
    let weir = Proxy {
        name: "weir_recall".to_owned(),
        kind: Kind::Command(format!(
            "WEIR_CONTEXT__RECALL__TOOL=true exec '{}' serve --listen 127.0.0.1:{{port}} \
             --upstream {{upstream}} --store :memory:",
            env!("CARGO_BIN_EXE_weir")
        )),
        limit_header: Some("x-weir-max-input-tokens".to_owned()),
    };
    let outcome = run(vec![weir], &[Budget::Percent(30)]).await;
    let own = row(&outcome, "weir_recall");
    assert_eq!((own.valid, own.over), (Some(1.0), Some(0.0)), "{:?}", own.problems);
    assert!(own.offered.kept > 0 && own.recalled.kept > 0, "{own:?}");
    assert!(own.reach > own.ctx, "{own:?}");
}

/// Proxy in Python that leaves its first three requests without an answer.
const SILENT: &str = r#"
import os, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.reply(b"{}")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with open("requests", "ab") as file: file.write(b".")
        if os.path.getsize("requests") <= 3: threading.Event().wait()
        request = urllib.request.Request(os.environ["UPSTREAM_URL"] + "/chat/completions", body,
            {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer: self.reply(answer.read())
    def reply(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn silence_at_one_limit_ends_no_other() {
    let folder = crate::folder::Folder::new();
    let path = folder.write("silent.py", SILENT);
    let proxy = Proxy {
        name: "silent".to_owned(),
        kind: Kind::Command(format!("exec python3 '{}'", path)),
        limit_header: Some("x-limit".to_owned()),
    };
    let plan = Plan {
        proxies: vec![proxy],
        cases: bench::planted(2).into_iter().take(1).map(Arc::new).collect(),
        limits: vec![Budget::Percent(30), Budget::Percent(50)],
        seed: 2,
        upstream_port: 0,
        write_price: 1.0,
        answer: Duration::from_secs(3),
    };
    let outcome = run_plan(&plan).await;
    let [(name, reason)] = &outcome.failures[..] else { panic!("{:?}", outcome.failures) };
    assert_eq!(name, "silent at 30%");
    assert_eq!(reason, "3 requests got no answer within 3 s");
    let own = row(&outcome, "silent");
    assert_eq!((own.limit.as_str(), own.answered), ("50%", Some(1.0)));
}

#[cfg(unix)]
mod stopped {
    //! The program in a process of its own, stopped from outside and by a panic.

    use std::process::{ExitCode, Stdio};

    use clap::Parser as _;
    use rustix::process::{Pid, Signal, kill_process};
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::process::Command;
    use tokio::time::timeout;

    use super::program;
    use crate::eventually::DEADLINE;

    /// Proxy in Python with a child that ignores SIGTERM. Each holds a connection to the test while it
    /// lives.
    const LASTING: &str = r#"
import json, os, signal, socket, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
life = socket.create_connection(("127.0.0.1", int(os.environ["LIFE_PORT"])))
if os.fork() == 0:
    life.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    life = socket.create_connection(("127.0.0.1", int(os.environ["LIFE_PORT"])))
    while True: signal.pause()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.reply(b"{}")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        request = urllib.request.Request(os.environ["UPSTREAM_URL"] + "/chat/completions", body,
            {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer: self.reply(answer.read())
    def reply(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

    /// The program, which the test below starts in a process of its own. Without arguments it does
    /// nothing.
    #[tokio::test(flavor = "multi_thread")]
    async fn fitbench() {
        let Ok(arguments) = std::env::var("FITBENCH_ARGUMENTS") else { return };
        let flags = program::Flags::parse_from(arguments.lines());
        let code = program::command(flags).await;
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }

    /// Reads until the other side has closed the connection.
    async fn until_closed(mut life: TcpStream) {
        // A reset is an end as well.
        timeout(DEADLINE, life.read(&mut [0])).await.expect("the process has ended").ok();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_process_and_no_folder_outlives_the_bench() {
        for (signal, code) in [(Some(Signal::TERM), 143), (Some(Signal::INT), 130), (None, 101)] {
            let folder = crate::folder::Folder::new();
            let temporary = crate::folder::Folder::new();
            let path = folder.write("lasting.py", LASTING);
            let life = TcpListener::bind("127.0.0.1:0").await.expect("a port of loopback is free");
            let port = life.local_addr().expect("it is bound").port();
            let json = folder.path("figures.json");
            let arguments = format!(
                "fitbench\n--no-built-in\n--limits\n50%\n--start\nlasting=python3 {path}\n--json\n{json}"
            );
            let mut bench = Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "fitbench::stopped::fitbench", "--nocapture"])
                .env("FITBENCH_ARGUMENTS", arguments)
                .env("LIFE_PORT", port.to_string())
                .env("TMPDIR", temporary.as_ref())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("it starts");
            let mut stderr = BufReader::new(bench.stderr.take().expect("piped")).lines();
            let mut shown = String::new();
            while !shown.contains("lasting at 50%: conversation 1 of 2") {
                let line = timeout(DEADLINE, stderr.next_line()).await.expect("it goes on");
                shown += &line.expect("text").expect("it is not the end yet");
            }
            assert!(shown.contains("| drop-all | 50% |"), "{shown}");
            let first = life.accept().await.expect("the proxy lives").0;
            let second = life.accept().await.expect("its child lives").0;
            match signal {
                Some(signal) => {
                    let id = i32::try_from(bench.id().expect("it runs")).expect("an identifier");
                    kill_process(Pid::from_raw(id).expect("an identifier"), signal).expect("sent");
                }
                // The next line of progress cannot be written, which is a panic.
                None => drop(stderr),
            }
            let output = timeout(DEADLINE, bench.wait_with_output()).await.expect("it ends");
            let output = output.expect("it ran");
            assert_eq!(output.status.code(), Some(code), "{shown}");
            until_closed(first).await;
            until_closed(second).await;
            let left: Vec<_> = std::fs::read_dir(&temporary).expect("a folder").collect();
            assert!(left.is_empty(), "{left:?}");
            // A stopped run shows the rows that are done.
            let page = String::from_utf8_lossy(&output.stdout);
            let has_rows = page.contains("| drop-all | 50% |") && page.contains("Stopped by SIG");
            assert_eq!(has_rows, signal.is_some(), "{page}");
            // It says nothing about the proxy that it has ended.
            assert!(!page.contains("lasting"), "{page}");
            assert_eq!(std::path::Path::new(&json).exists(), signal.is_some());
        }
    }
}
