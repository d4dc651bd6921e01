//! `weir run`: environment, requests, signals and exit code of the command that it runs.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use tokio::task::spawn_blocking;

use crate::cli::weir;
use crate::folder::Folder;
use crate::server::harness::{FINE, Upstream};

/// Builds a `weir run` of a shell script.
fn run(options: &[&str], script: &str) -> Command {
    let mut command = weir(&["run"]);
    command.args(options).args(["--", "sh", "-c", script]);
    command
}

/// Runs a command to its end; returns its exit code, standard output and standard error.
fn ended(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("weir starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

#[test]
fn the_command_gets_addresses_and_its_exit_code_is_kept() {
    let script = "echo $OPENAI_BASE_URL; echo $OPENAI_API_BASE; echo $ANTHROPIC_BASE_URL; exit 7";
    let (code, stdout, stderr) = ended(run(&[], script));
    assert_eq!(code, Some(7), "{stderr}");
    let [openai, legacy, anthropic] = stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{stdout}")
    };
    assert!(openai.starts_with("http://127.0.0.1:") && openai.ends_with("/v1"), "{openai}");
    assert_eq!(legacy, openai);
    assert!(anthropic.starts_with("http://127.0.0.1:") && !anthropic.ends_with("/v1"));
    assert_ne!(openai.trim_end_matches("/v1"), anthropic);
    assert!(stderr.contains("no request arrived"), "{stderr}");
}

#[test]
fn the_end_of_a_run_says_why_requests_failed() {
    let script = "curl -s -o /dev/null $OPENAI_BASE_URL/chat/completions \\
                  -H 'content-type: application/json' \\
                  -d '{\"model\":\"gpt-4o\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}'";
    let (code, _, stderr) = ended(run(&["--openai", "http://127.0.0.1:9/v1"], script));
    assert_eq!(code, Some(0), "{stderr}");
    let expected = "1 request failed, the last one with upstream_connect";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn a_command_that_cannot_run_has_the_codes_of_a_shell() {
    let folder = Folder::new();
    let file = folder.write("plain", "no program");
    for (program, expected) in [("/no/such/program", 127), (file.as_str(), 126)] {
        let (code, _, stderr) = ended(weir_run(program, &[]));
        assert_eq!(code, Some(expected), "{stderr}");
        assert!(stderr.contains(program), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "no summary: {stderr}");
    }
    let (code, _, stderr) = ended(run(&["--anthropic", "nowhere"], "true"));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--anthropic"), "{stderr}");
}

#[test]
fn the_dashes_may_be_left_out() {
    let (code, stdout, stderr) =
        ended(weir(&["run", "--observe", "sh", "-c", "echo $0; exit 7", "--json"]));
    assert_eq!((code, stdout.as_str()), (Some(7), "--json\n"), "{stderr}");
}

#[test]
fn codex_gets_the_address_as_an_argument() {
    let folder = Folder::new();
    let program = folder.write("codex", "#!/bin/sh\nprintf '%s\\n' \"$@\" $OPENAI_BASE_URL\n");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is a file");
    let (_, stdout, stderr) = ended(weir_run(&program, &["exec", "two words"]));
    let Some(url) = stdout.lines().last() else { panic!("{stderr}") };
    let expected = format!("-c\nopenai_base_url=\"{url}\"\nexec\ntwo words\n{url}\n");
    assert_eq!(stdout, expected);
}

fn weir_run(program: &str, arguments: &[&str]) -> Command {
    let mut command = weir(&["run", "--", program]);
    command.args(arguments);
    command
}

#[tokio::test]
async fn each_protocol_goes_to_its_provider() {
    let (mut openai, mut anthropic) = (Upstream::start().await, Upstream::start().await);
    let urls = [&openai, &anthropic].map(|upstream| format!("http://{}", upstream.address));
    let options = ["--openai", &format!("{}/v1", urls[0]), "--anthropic", &urls[1]];
    let script = r#"
        curl -sS "$OPENAI_BASE_URL/chat/completions" -H 'authorization: Bearer sk-openai' \
            -d '{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}'
        curl -sS "$ANTHROPIC_BASE_URL/v1/messages" -H 'x-api-key: sk-anthropic' \
            -d '{"model":"any","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
        curl -sS "$ANTHROPIC_BASE_URL/messages" -H 'x-api-key: sk-short' \
            -d '{"model":"any","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
    "#;
    let command = run(&options, script);
    let running = spawn_blocking(|| ended(command));
    let keys =
        ["authorization: Bearer sk-openai", "x-api-key: sk-anthropic", "x-api-key: sk-short"];
    for (key, is_openai) in keys.into_iter().zip([true, false, false]) {
        let (upstream, path) = match is_openai {
            true => (&mut openai, "POST /v1/chat/completions"),
            false => (&mut anthropic, "POST /v1/messages"),
        };
        let seen = upstream.next().await;
        assert!(seen.head.starts_with(path), "{}", seen.head);
        assert!(seen.head.contains(key), "{}", seen.head);
        seen.answer(FINE);
    }
    let (code, stdout, stderr) = running.await.expect("it does not panic");
    assert_eq!((code, stdout.as_str()), (Some(0), "[][][]"), "{stderr}");
    assert!(stderr.contains("weir: 3 requests (0 compactions)"), "{stderr}");
}

#[tokio::test]
async fn a_limit_compacts_and_observing_forwards_the_same_bytes() {
    let folder = Folder::new();
    let turns: String = (0..40)
        .map(|turn| {
            let text = format!("turn {turn} ").repeat(40);
            format!(
                r#"{{"role":"user","content":"{text}"}},{{"role":"assistant","content":"ok"}},"#
            )
        })
        .collect();
    let body =
        format!(r#"{{"model":"gpt-4o","messages":[{turns}{{"role":"user","content":"go on"}}]}}"#);
    let file = folder.write("body.json", &body);
    // The second request goes on in the conversation that the first has compacted.
    let script =
        format!("for n in 1 2; do curl -sS $OPENAI_BASE_URL/chat/completions -d @{file}; done");
    for is_observed in [false, true] {
        let mut upstream = Upstream::start().await;
        let url = format!("http://{}/v1", upstream.address);
        let mut options = vec!["--openai", &url, "--max-input-tokens", "1000"];
        options.extend(is_observed.then_some("--observe"));
        let command = run(&options, &script);
        let running = spawn_blocking(|| ended(command));
        let seen = upstream.next().await;
        assert_eq!(seen.body == body.as_bytes(), is_observed);
        assert_eq!(seen.body.len() < body.len() / 2, !is_observed);
        seen.answer(FINE);
        upstream.next().await.answer(FINE);
        let (_, _, stderr) = running.await.expect("it does not panic");
        let expected = match is_observed {
            true => "2 requests (1 compaction left out), ",
            false => "2 requests (1 compaction), ",
        };
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(stderr.contains("; without --observe "), is_observed, "{stderr}");
    }
}

#[test]
fn only_the_command_may_use_the_addresses() {
    let script = r#"
        for url in "$OPENAI_BASE_URL" "$ANTHROPIC_BASE_URL/v1"; do
            host=${url#http://}; host=${host%%/*}
            for page in "$url/no-such-page" http://$host/v1/models http://$host/readyz \
                http://$host/metrics http://$host/wrong/v1/models http://$host/; do
                curl -s -o /dev/null -w '%{http_code} ' "$page"
            done
            curl -s -o /dev/null -w '%{http_code}\n' "${url%/v1}/readyz"
        done"#;
    let (code, stdout, stderr) = ended(run(
        &["--openai", "http://127.0.0.1:9/v1", "--anthropic", "http://127.0.0.1:9"],
        script,
    ));
    assert_eq!(code, Some(0), "{stderr}");
    for line in stdout.lines() {
        let codes: Vec<&str> = line.split(' ').collect();
        let [own, others @ .., ready] = &codes[..] else { panic!("{stdout}") };
        assert_ne!(*own, "401", "{stdout}");
        assert_eq!((others, *ready), (&["401"; 5][..], "200"), "{stdout}");
    }
    assert_eq!(stdout.lines().count(), 2, "{stderr}");
}

#[test]
fn the_command_does_not_inherit_the_keys_of_the_operator() {
    let folder = Folder::new();
    let config = "[upstream]\nurl = \"http://127.0.0.1:9/v1\"\napi_key = \"env:OPENAI_API_KEY\"\n\
                  headers = { x-other = \"env:OTHER_KEY\" }\n";
    let config = folder.write("weir.toml", config);
    let script = "echo $OPENAI_API_KEY $OTHER_KEY $ANTHROPIC_API_KEY";
    for (flags, expected) in [
        (&["--config", &config][..], "kept-by-weir kept-by-weir sk-mine\n"),
        (&["--config", &config, "--pass-keys"], "sk-operator other-operator sk-mine\n"),
    ] {
        let mut command = run(flags, script);
        command.env("OPENAI_API_KEY", "sk-operator").env("OTHER_KEY", "other-operator");
        command.env("ANTHROPIC_API_KEY", "sk-mine");
        let (_, stdout, stderr) = ended(command);
        assert_eq!(stdout, expected, "{stderr}");
    }
}

#[test]
fn a_signal_reaches_the_command() {
    let trapping = "trap 'kill $!; exit 9' TERM; sleep 600 > /dev/null & echo ready; wait";
    for (script, expected) in [(trapping, 9), ("echo ready; exec sleep 600", 128 + 15)] {
        let mut running = run(&[], script).stdin(Stdio::null()).spawn().expect("weir starts");
        let mut stdout = BufReader::new(running.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        let kill = Command::new("kill").args(["-TERM", &running.id().to_string()]).status();
        assert!(kill.expect("kill is there").success());
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("text");
        assert_eq!(running.wait().expect("it is a child").code(), Some(expected));
    }
}

#[test]
fn the_log_goes_to_a_file() {
    let folder = Folder::new();
    let log = folder.path("logs/run.log");
    let script = "curl -sS $OPENAI_BASE_URL/chat/completions -d '{' > /dev/null";
    let (_, _, stderr) = ended(run(&["--log", &log], script));
    assert_eq!(stderr.lines().count(), 1, "the summary alone: {stderr}");
    let log = std::fs::read_to_string(log).expect("it is written");
    assert!(log.contains("/v1/chat/completions"), "{log}");
}
