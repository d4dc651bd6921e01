//! The `weir` program: exit codes, signals and output.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use crate::folder::Folder;
#[cfg(target_os = "linux")]
use crate::server::harness;
use crate::server::harness::{FINE, Upstream, Wire, bare, body_of, chat};

/// Builds a `weir` command without inherited settings.
pub fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments);
    isolate(&mut command);
    command
}

/// Removes the variables from a command's environment that configure `weir`.
pub fn isolate(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if shown.starts_with("WEIR_")
            || shown.starts_with("OTEL_")
            || shown.to_lowercase().ends_with("_proxy")
        {
            command.env_remove(&name);
        }
    }
    command.env_remove("OPENAI_BASE_URL");
    command.env_remove("ANTHROPIC_BASE_URL");
    for name in ["CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "NO_COLOR"] {
        command.env_remove(name);
    }
    command.env("WEIR_STORE__PATH", ":memory:");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped());
    command.stderr(Stdio::piped());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_limit_of_open_files_is_raised_or_named() {
    for (most, warns) in [(1000, false), (250, true)] {
        let script = format!("ulimit -Sn 200; ulimit -Hn {most}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_weir"), "serve", "--port", "0"]);
        isolate(&mut command);
        command.env("WEIR_SERVER__MAX_CONNECTIONS", "100");
        let serving = Serving::run(&mut command);
        let said =
            "may have 250 open files, and 100 connections (server.max_connections) need about 300";
        assert_eq!(serving.greeting.contains(said), warns, "{}", serving.greeting);
        let metrics = harness::ask(serving.address, bare("GET", "/metrics", "")).await;
        let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
        assert!(metrics.contains(&format!("process_max_fds {most}\n")), "{metrics}");
    }
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    probe.local_addr().expect("it is bound").port()
}

/// Runs a command to its end; returns its exit code and standard error.
fn ended(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().expect("weir starts");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Running `weir serve` process.
pub struct Serving {
    process: Child,
    log: BufReader<std::process::ChildStderr>,
    /// Output until it listened.
    pub greeting: String,
    pub address: std::net::SocketAddr,
}

impl Serving {
    pub fn start(arguments: &[&str]) -> Self {
        Self::run(weir(&["serve", "--listen", "127.0.0.1:0"]).args(arguments))
    }

    /// Runs a command that starts `weir serve`.
    pub fn run(command: &mut Command) -> Self {
        Self::of(command.spawn().expect("weir starts"))
    }

    /// Waits until a `weir serve` listens.
    pub fn of(mut process: Child) -> Self {
        let mut log = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut greeting = String::new();
        while !greeting.contains("listening on") {
            let read = log.read_line(&mut greeting).expect("text");
            assert!(read > 0, "weir ended: {greeting}");
        }
        let after = greeting.split("listening on ").nth(1).expect("an address");
        let address = after.split(',').next().expect("an address");
        Self { address: address.parse().expect(address), process, log, greeting }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.process.id().to_string()]).status();
        assert!(status.expect("kill is there").success());
    }

    /// Reads the log until it contains `text`.
    pub fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let read = self.log.read_line(&mut line).expect("text");
            assert!(read > 0, "weir ended before it said: {text}");
        }
    }

    /// Stops the process and returns its output after it listened.
    pub fn log(mut self) -> String {
        self.signal("-TERM");
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).expect("text");
        rest
    }

    /// Returns the exit code.
    pub fn ended(mut self) -> Option<i32> {
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).expect("text");
        self.process.wait().expect("it is a child").code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // A failed test leaves no process behind; killing an ended process fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn without_a_command_it_helps() {
    let output = weir(&[]).output().expect("weir starts");
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(help.contains("weir serve"), "{help}");
    let output = weir(&["serve", "--help"]).output().expect("weir starts");
    let help = String::from_utf8_lossy(&output.stdout);
    for said in ["--upstream", "Examples:", "Exit codes:", "WEIR_"] {
        assert!(help.contains(said), "{said}: {help}");
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let (code, said) = ended(
        weir(&["serve", "--listen", "nowhere", "--log-level", "loud"])
            .env("WEIR_SERVER__MAX_BODY_BYTES", "much")
            .env("WEIR_SERVER__UNKNOWN", "1"),
    );
    assert_eq!(code, Some(2), "{said}");
    for key in ["server.listen", "log.level", "server.max_body_bytes", "server.unknown"] {
        assert!(said.contains(key), "{key}: {said}");
    }
    let (code, said) = ended(&mut weir(&["serve", "--config", "/no/such/weir.toml"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/no/such/weir.toml"), "{said}");
}

#[test]
fn an_upstream_that_is_weir_itself_is_refused_with_the_cure() {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let url = format!("http://{host}:{port}/v1");
        let (code, said) = ended(&mut weir(&["serve", "--listen", &listen, "--upstream", &url]));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("own address"), "{said}");
        assert!(said.contains("--upstream https://"), "{said}");
        assert!(!said.contains("OPENAI_BASE_URL"), "{said}");
    }
    let url = format!("http://localhost:{port}/v1");
    let (code, said) = ended(weir(&["serve", "--listen", &listen]).env("OPENAI_BASE_URL", &url));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("OPENAI_BASE_URL"), "{said}");
    assert!(said.contains("--upstream https://api.openai.com/v1"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_told_with_the_cure() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = holder.local_addr().expect("it is bound").to_string();
    let (code, said) = ended(&mut weir(&["serve", "--listen", &address]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&address), "{said}");
    assert!(said.contains("--listen"), "{said}");
}

#[tokio::test]
async fn it_says_how_to_use_it_and_serves() {
    let upstream = Upstream::always(FINE).await;
    let url = format!("http://{upstream}/v1");
    let serving = Serving::start(&["--upstream", &url]);
    let base_url = format!("base_url = http://{}/v1", serving.address);
    assert!(serving.greeting.contains(&base_url), "{}", serving.greeting);
    assert!(serving.greeting.contains(&url), "{}", serving.greeting);
    let mut wire = Wire::connect(serving.address).await;
    assert_eq!(wire.ask(bare("GET", "/readyz", "")).await.status(), 200);
    assert_eq!(wire.ask(chat("", body_of(100))).await.status(), 200);
    serving.signal("-INT");
    assert_eq!(serving.ended(), Some(0));
}

#[test]
fn it_says_where_requests_go() {
    let folder = Folder::new();
    let upstreams = |count: usize| -> String {
        let section =
            |number| format!("[upstreams.u{number:02}]\nurl = \"http://127.0.0.1:1/v1\"\n");
        (0..count).map(section).collect()
    };
    let routes = |count: usize| -> String {
        (0..count).map(|number| format!("[[routes]]\nmodels = [\"m{number}\"]\n")).collect()
    };
    let some: Vec<String> = (0..16).map(|number| format!("u{number:02}")).collect();
    let many = format!("{}, 2 more", some.join(", "));
    for (text, expected) in [
        (String::new(), String::new()),
        (routes(3), " (other upstreams: none; routes: 3)".to_owned()),
        (upstreams(2) + &routes(1), " (other upstreams: u00, u01; routes: 1)".to_owned()),
        (upstreams(18), format!(" (other upstreams: {many}; routes: 0)")),
    ] {
        let config = folder.write("weir.toml", &text);
        let serving = Serving::start(&["--upstream", "http://127.0.0.1:2/v1", "--config", &config]);
        let expected = format!("forwarding to  http://127.0.0.1:2/v1{expected}\n");
        assert!(serving.greeting.contains(&expected), "{}", serving.greeting);
        serving.signal("-TERM");
        assert_eq!(serving.ended(), Some(0));
    }
}

#[test]
fn the_greeting_names_store_configuration_limits_and_mode() {
    let folder = Folder::new();
    let store = folder.file("weir.db").display().to_string();
    let config = folder.write(
        "weir.toml",
        "[[limits]]\nmodel = \"gpt-4o*\"\nmax_input_tokens = 32000\n\
         [upstream]\nurl = \"http://127.0.0.1:2/v1?key=sesame\"\n",
    );
    let greeting = |command: &mut Command| {
        let serving = Serving::run(command);
        let greeting = serving.greeting.clone();
        serving.signal("-TERM");
        assert_eq!(serving.ended(), Some(0));
        greeting
    };
    let said =
        greeting(&mut weir(&["serve", "--port", "0", "--config", &config, "--store", &store]));
    for line in [
        "forwarding to  http://127.0.0.1:2/v1?…\n".to_owned(),
        format!("store          {store}\n"),
        format!("configuration  {config}, WEIR_STORE__PATH, --port, --store\n"),
        "limits         gpt-4o* 32000 tokens; otherwise each model's context window\n".to_owned(),
        "mode           open (weir's own key is used), compact (conversations are made to fit)\n"
            .to_owned(),
    ] {
        assert!(said.contains(&line), "{line}: {said}");
    }
    assert!(!said.contains("sesame"), "{said}");
    let upstream = ["--upstream", "http://127.0.0.1:2/v1"];
    let said = greeting(
        weir(&["serve", "--listen", "0"])
            .args(upstream)
            .env("WEIR_AUTH__MODE", "keys")
            .env("WEIR_UPSTREAM__API_KEY", "env:OWN_KEY")
            .env("OWN_KEY", "sk-own")
            .env("WEIR_ADMIN__LISTEN", "off")
            .env("WEIR_CONTEXT__MODE", "observe"),
    );
    for line in [
        "store          memory: lost when this process ends\n",
        "limits         each model's context window\n",
        "mode           keys (callers need a virtual key), observe (nothing is compacted)\n",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn a_port_alone_is_an_address() {
    let port = free_port();
    let listen = |arguments: &[&str]| {
        let mut command = weir(&["serve", "--upstream", "http://127.0.0.1:2/v1"]);
        let serving = Serving::run(command.args(arguments));
        let address = serving.address;
        serving.signal("-TERM");
        assert_eq!(serving.ended(), Some(0));
        address.to_string()
    };
    let expected = format!("127.0.0.1:{port}");
    let port = port.to_string();
    let local = format!("localhost:{port}");
    for arguments in [["--port", &port], ["--listen", &port], ["--listen", &local]] {
        assert_eq!(listen(&arguments), expected, "{arguments:?}");
    }
    let (code, said) = ended(&mut weir(&["serve", "--listen", "weir.example:8400"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("127.0.0.1:8400 (0.0.0.0:8400 for all"), "{said}");
}

/// Maximum width of lines that a terminal shows without wrapping.
const TERMINAL_WIDTH: usize = 80;

#[test]
fn help_fits_a_narrow_terminal() {
    let commands: [&[&str]; 20] = [
        &[],
        &["serve"],
        &["check"],
        &["explain"],
        &["keys"],
        &["keys", "create"],
        &["keys", "list"],
        &["keys", "show"],
        &["keys", "limit"],
        &["keys", "rotate"],
        &["keys", "revoke"],
        &["budgets"],
        &["budgets", "set"],
        &["budgets", "list"],
        &["budgets", "remove"],
        &["usage"],
        &["backup"],
        &["models"],
        &["models", "learned"],
        &["replay"],
    ];
    for command in commands {
        let output = weir(command)
            .arg("--help")
            .env("COLUMNS", TERMINAL_WIDTH.to_string())
            .output()
            .expect("weir starts");
        let help = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{command:?}");
        assert!(help.contains("Examples:"), "{command:?} has no examples: {help}");
        for line in help.lines() {
            assert!(line.chars().count() <= TERMINAL_WIDTH, "{command:?}: {line}");
        }
        // A wrapped line begins at the left, in the middle of an example or a list.
        let (_, behind) = help.split_once("Examples:\n").expect("examples");
        let examples = behind.split("\n\n").next().unwrap_or_default();
        for line in examples.lines() {
            assert!(line.starts_with("  "), "{command:?}: {line}");
        }
    }
}

#[tokio::test]
async fn a_signal_finishes_what_is_in_flight() {
    let mut upstream = Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let mut serving = Serving::start(&["--upstream", &url]);
    let mut wire = Wire::connect(serving.address).await;
    wire.send(chat("", body_of(100))).await;
    let seen = upstream.next().await;
    serving.signal("-TERM");
    serving.wait_for("finishing requests in flight");
    seen.answer(FINE);
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
    assert_eq!(serving.ended(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mut upstream = Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let mut serving = Serving::start(&["--upstream", &url]);
    let mut wire = Wire::connect(serving.address).await;
    wire.send(chat("", body_of(100))).await;
    let _unanswered = upstream.next().await;
    serving.signal("-TERM");
    serving.wait_for("finishing requests in flight");
    serving.signal("-TERM");
    assert_eq!(serving.ended(), Some(130));
}

#[tokio::test]
async fn the_log_is_json_where_asked() {
    let serving = Serving::start(&["--log-format", "json", "--upstream", "http://127.0.0.1:1/v1"]);
    let line = serving.greeting.lines().last().expect("a line");
    let parsed: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(parsed["level"], "INFO");
    serving.signal("-TERM");
    assert_eq!(serving.ended(), Some(0));
}
