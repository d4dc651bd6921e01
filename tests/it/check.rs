//! `weir check`, and refusals by `weir serve`: key, file, line and the expected value.

use serde_json::{Value, json};

use crate::cli::{Serving, free_port, weir};
use crate::folder::Folder;
use crate::scripted_upstream::{Options, Server};
use crate::tls::setting::Authority;

/// Runs a command and returns its standard output and exit code.
fn said(command: &mut std::process::Command) -> (String, Option<i32>) {
    let output = command.output().expect("weir starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

/// Returns the output of `weir check --json` for a file.
fn checked(folder: &Folder, text: &str, arguments: &[&str]) -> (Value, Option<i32>) {
    let path = folder.write("weir.toml", text);
    let (said, code) =
        said(weir(&["check", "--json", "--config", &path]).args(arguments).env("OWN_KEY", "sk-1"));
    (serde_json::from_str(&said).expect(&said), code)
}

#[test]
fn each_problem_has_its_line_and_its_cure() {
    let folder = Folder::new();
    let text = "# weir's\n\
        [server]\n\
        lissten = \"127.0.0.1:1\"\n\
        max_connections = 0\n\
        [context]\n\
        notes = \"excerpt\"\n\
        [[limits]]\n\
        model = \"gpt-4o\"\n\
        [models.\"my/model\"]\n\
        max_input_tokens = 5\n";
    let (found, code) = checked(&folder, text, &[]);
    assert_eq!((code, &found["ok"]), (Some(2), &json!(false)));
    let file = folder.path("weir.toml");
    let problems = found["problems"].as_array().expect("a list");
    let rows: Vec<Value> = problems
        .iter()
        .map(|problem| {
            assert_eq!(problem["file"], file, "{problem}");
            json!([problem["key"], problem["line"], problem["suggestion"]])
        })
        .collect();
    let expected = [
        json!(["server.max_connections", 4, "a whole number from 1 to 1000000"]),
        json!(["context.notes", 6, "one of \"off\", \"count\", \"extract\", \"excerpts\""]),
        json!(["limits[0].max_input_tokens", 7, null]),
        json!(["models.\"my/model\".window_tokens", 9, null]),
        json!(["server.lissten", 3, "server.listen"]),
    ];
    assert_eq!(rows, expected);

    // The text form agrees, and `weir serve` prints the same.
    let (words, code) = said(&mut weir(&["check", "--config", &file]));
    assert_eq!(code, Some(2));
    let output = weir(&["serve", "--config", &file]).output().expect("weir starts");
    assert_eq!(output.status.code(), Some(2));
    let refused = String::from_utf8_lossy(&output.stderr).into_owned();
    let line =
        format!("server.lissten ({file}:3): there is no such key; did you mean server.listen?");
    assert!(words.contains(&line), "{words}");
    assert!(refused.contains(&line), "{refused}");
}

#[test]
fn a_problem_may_come_from_anywhere() {
    let folder = Folder::new();
    let file = folder.write("weir.toml", "[log]\nlevel = \"info\"");
    let (found, code) = said(
        weir(&["check", "--json", "--config", &file, "--log-level", "loud"])
            .env("WEIR_CONTEXT__LOW", "2"),
    );
    let found: Value = serde_json::from_str(&found).expect(&found);
    assert_eq!(code, Some(2));
    let rows: Vec<Value> = found["problems"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|problem| json!([problem["key"], problem["file"], problem["line"]]))
        .collect();
    let expected = [
        json!(["context.low", "WEIR_CONTEXT__LOW", null]),
        json!(["log.level", "--log-level", null]),
    ];
    assert_eq!(rows, expected);
    let (missing, code) = said(&mut weir(&["check", "--config", "/no/such/weir.toml"]));
    assert_eq!(code, Some(2));
    assert!(missing.contains("/no/such/weir.toml: cannot be read"), "{missing}");
}

#[test]
fn what_the_configuration_names_is_looked_at() {
    let folder = Folder::new();
    let (one, other) = (Authority::new("one").issue("a"), Authority::new("one").issue("b"));
    let cert = folder.write("cert.pem", &one.cert);
    let key = folder.write("key.pem", &one.key);
    let other = folder.write("other.pem", &other.key);
    let nothing = folder.write("nothing.pem", "nothing");
    let tls =
        |cert: &str, key: &str| format!("[server.tls]\ncert_file = {cert:?}\nkey_file = {key:?}\n");
    let missing = folder.path("missing");
    let upstream = |keys: &str| format!("[upstream]\n{keys}\n");
    for (text, expected) in [
        (tls(&cert, &key), None),
        (tls(&cert, &other), Some(("server.tls.key_file", 3, "is not the key of the certificate"))),
        (tls(&nothing, &key), Some(("server.tls.cert_file", 2, "holds no certificate"))),
        (tls(&cert, &nothing), Some(("server.tls.key_file", 3, "holds no private key"))),
        (tls(&cert, &missing), Some(("server.tls.key_file", 3, "cannot be read"))),
        (upstream("api_key = \"env:OWN_KEY\""), None),
        (upstream("api_key = \"env:NO_SUCH_KEY\""), Some(("upstream.api_key", 2, "is not set"))),
        (
            upstream(&format!("api_key = \"file:{missing}\"")),
            Some(("upstream.api_key", 2, "cannot be read")),
        ),
        (upstream(&format!("tls.ca_file = {cert:?}")), None),
        (
            upstream(&format!("tls.ca_file = {nothing:?}")),
            Some(("upstream.tls.ca_file", 2, "holds no certificate")),
        ),
        (
            upstream(&format!("tls.cert_file = {nothing:?}\ntls.key_file = {key:?}")),
            Some(("upstream.tls.cert_file", 2, "no certificate and private key")),
        ),
    ] {
        let (found, code) = checked(&folder, &text, &[]);
        let problems = found["problems"].as_array().expect("a list");
        let Some((key, line, message)) = expected else {
            assert_eq!((code, problems.len()), (Some(0), 0), "{text}: {found}");
            continue;
        };
        assert_eq!((code, problems.len()), (Some(2), 1), "{text}: {found}");
        assert_eq!(
            (&problems[0]["key"], &problems[0]["line"]),
            (&json!(key), &json!(line)),
            "{found}"
        );
        let said = problems[0]["message"].as_str().expect("text");
        assert!(said.contains(message), "{said}");
        assert!(!found.to_string().contains("BEGIN"), "nothing of a key is shown: {found}");
    }
}

/// `weir serve` refuses invalid URLs with the same error text.
#[test]
fn what_serving_refuses_of_a_url_checking_refuses() {
    let folder = Folder::new();
    let port = free_port();
    let listen = format!("[server]\nlisten = \"127.0.0.1:{port}\"\n");
    for (text, key, line, message) in [
        (
            "[redis]\nurl = \"redis://u:sesame@h:1/one\"\n".to_owned(),
            "redis.url",
            2,
            "is not a Redis address",
        ),
        (
            "[store]\nurl = \"postgres://u:sesame@h/d?sslmode=allow\"\n".to_owned(),
            "store.url",
            2,
            "sslmode must be",
        ),
        (
            "[store]\nurl = \"postgres://u:sesame%zz@h:port/d\"\n".to_owned(),
            "store.url",
            2,
            "is invalid",
        ),
        (
            "[summaries]\nmodel = \"m\"\nupstream.url = \"http://h/a/..%2fb/v1\"\n".to_owned(),
            "summaries.upstream.url",
            3,
            "segments",
        ),
        (
            format!("{listen}[upstream]\nurl = \"http://127.0.0.1:{port}/v1\"\n"),
            "upstream.url",
            4,
            "is weir's own address",
        ),
        (
            format!("{listen}[upstreams.b]\nurl = \"http://localhost:{port}/v1\"\n"),
            "upstreams.b.url",
            4,
            "is weir's own address",
        ),
    ] {
        let file = folder.write("weir.toml", &text);
        // Here the file sets the store.
        let own =
            |mut command: std::process::Command| command.env_remove("WEIR_STORE__PATH").output();
        let output = own(weir(&["check", "--json", "--config", &file])).expect("weir starts");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let problems = found["problems"].as_array().expect("a list");
        assert_eq!((output.status.code(), problems.len()), (Some(2), 1), "{text}: {found}");
        let problem = &problems[0];
        assert_eq!(json!([problem["key"], problem["line"]]), json!([key, line]), "{found}");
        let said = problem["message"].as_str().expect("text");
        assert!(said.contains(message) && !said.contains("sesame"), "{said}");
        let output = own(weir(&["serve", "--config", &file])).expect("weir starts");
        let refused = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{refused}");
        assert!(refused.contains(&format!("- {key} ({file}:{line}): {said}")), "{refused}");
    }
    // Flags and variables override the file.
    let text = "[upstream]\nurl = \"http://h/v1\"\n";
    let (listen, url) = (format!("127.0.0.1:{port}"), format!("http://localhost:{port}/v1"));
    let (found, _) = checked(&folder, text, &["--listen", &listen, "--upstream", &url]);
    let problem = &found["problems"][0];
    assert_eq!(json!([problem["file"], problem["line"]]), json!(["--upstream", null]), "{found}");
}

#[test]
fn warnings_are_told_and_are_no_problem() {
    let folder = Folder::new();
    let text = "[upstream]\nurl = \"http://models.internal/v1\"\n";
    let (found, code) = checked(&folder, text, &[]);
    assert_eq!((code, &found["ok"]), (Some(0), &json!(true)));
    let warning = &found["warnings"][0];
    assert_eq!((&warning["key"], &warning["line"]), (&json!("upstream.url"), &json!(2)));
    let (found, code) = checked(&folder, "upstreams.a.url = \"https://a.example/v1\"\n", &[]);
    assert_eq!((code, &found["warnings"][0]["key"]), (Some(0), &json!("upstreams.a.api_key")));
    // The recipe for two providers passes callers' keys on.
    let recipes = include_str!("../../docs/recipes.md");
    let mut blocks = recipes.split("```toml\n").map(|rest| rest.split("```").next().unwrap_or(""));
    let both = blocks.find(|block| block.contains("upstreams.anthropic")).expect("a recipe");
    let (found, code) = checked(&folder, both, &[]);
    assert_eq!((code, &found["warnings"]), (Some(0), &json!([])), "{both}");
}

#[test]
fn limits_that_do_not_hold_on_all_routes_are_warned_of() {
    let folder = Folder::new();
    let limit = "[[limits]]\nmodel = \"gpt-4o\"\nmax_input_tokens = 9000\n";
    let route =
        "[[routes]]\nmodels = [\"small\"]\nupstream = \"default\"\nmax_input_tokens = 9000\n";
    for (text, key) in [(limit, "limits"), (route, "routes")] {
        let (found, code) = checked(&folder, text, &[]);
        assert_eq!((code, &found["ok"]), (Some(0), &json!(true)), "{found}");
        let warnings = found["warnings"].as_array().expect("a list");
        let own: Vec<_> = warnings.iter().filter(|warning| warning["key"] == key).collect();
        assert_eq!(own.len(), 1, "{found}");
        let said = own[0]["message"].as_str().expect("text");
        assert!(
            said.contains("/v1/completions") && said.contains("x-weir-action: unread"),
            "{said}"
        );
    }
    let (found, _) = checked(&folder, "", &[]);
    assert_eq!(found["warnings"], json!([]), "nothing is limited");
}

#[test]
fn changes_say_what_they_cost() {
    let folder = Folder::new();
    let old = folder.write("old.toml", "[context]\nlow = 0.5\n[log]\nlevel = \"debug\"\n");
    let new = "[server]\nmax_connections = 5\n[context]\nlow = 0.6\n[store]\npath = \"x.db\"\n\
               [[limits]]\nmodel = \"gpt-4o\"\nmax_input_tokens = 9000\n";
    let (found, code) = checked(&folder, new, &["--against", &old]);
    assert_eq!(code, Some(0), "{found}");
    let rows: Vec<Value> = found["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|change| json!([change["key"], change["line"], change["effect"]]))
        .collect();
    let expected = [
        json!(["context.low", 4, "moves_cuts"]),
        json!(["limits[0]", 7, "moves_cuts"]),
        json!(["log.level", null, "next_request"]),
        json!(["server.max_connections", 2, "restart"]),
    ];
    // The store's path is the same in both: these tests' environment sets it.
    assert_eq!(rows, expected);
    let (found, _) = checked(&folder, new, &["--against", &folder.path("weir.toml")]);
    assert_eq!(found["changes"], json!([]));
    // A row inserted before others is one change, on its own line.
    let route = |model: &str| format!("[[routes]]\nmodels = [{model:?}]\nsend_as = \"m\"\n");
    let old = folder.write("old.toml", &(route("a*") + &route("b")));
    let new = route("first") + &route("a*") + &route("b");
    let (found, _) = checked(&folder, &new, &["--against", &old]);
    assert_eq!(
        found["changes"],
        json!([{ "key": "routes[0]", "line": 1, "effect": "moves_cuts" }])
    );
    // Errors in the current file are reported with their line there.
    let old = folder.write("old.toml", "# in force\n[context]\nlow = 2\n");
    let (found, code) = checked(&folder, &new, &["--against", &old]);
    let problem = &found["problems"][0];
    assert_eq!(
        json!([code, problem["key"], problem["file"], problem["line"]]),
        json!([2, "context.low", old, 3])
    );
}

#[test]
fn what_weir_needs_beside_itself_is_tried_where_asked() {
    let folder = Folder::new();
    let text =
        "[redis]\nurl = \"redis://127.0.0.1:1\"\n[upstream]\nurl = \"http://127.0.0.1:1/v1\"\n";
    let (found, code) = checked(&folder, text, &[]);
    assert_eq!(code, Some(0), "{found}");
    let (found, code) = checked(&folder, text, &["--connect"]);
    assert_eq!(code, Some(2), "{found}");
    assert_eq!(found["problems"][0]["key"], "redis.url");
    assert_eq!(found["problems"][0]["line"], 2);
    assert_eq!(found["problems"][1]["key"], "upstream.url");
    assert_eq!(found["problems"][1]["line"], 4);
    let said = found["problems"][1]["message"].as_str().expect("text");
    assert!(said.contains("Start the server at http://127.0.0.1:1/v1"), "{said}");
}

#[test]
fn routes_closed_to_budgets_are_listed_where_asked() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let text = "[upstream]\nurl = \"http://127.0.0.1:1/v1\"\n";
    let listed = |text: &str| {
        let path = folder.write("weir.toml", text);
        let mut command = weir(&["check", "--connect", "--json", "--config", &path]);
        let (found, _) = said(command.env("WEIR_STORE__PATH", &store));
        let found: Value = serde_json::from_str(&found).expect(&found);
        let tried = found["tried"].as_array().expect("a list").clone();
        tried.into_iter().find(|tried| tried["key"] == "prices.default")
    };
    assert_eq!(listed(text), None, "nobody has a budget");
    let mut set = weir(&["budgets", "set", "all", "--usd", "1", "--per", "day"]);
    assert!(set.arg("--store").arg(&store).output().expect("it runs").status.success());
    let closed = listed(text).expect("a line");
    assert_eq!(closed["outcome"], "unclear");
    let message = closed["message"].as_str().expect("text");
    assert!(message.contains("audio/transcriptions") && message.contains("batches"), "{message}");
    let price =
        "[prices.default]\ninput_usd_per_mtok = 1\noutput_usd_per_mtok = 1\nrequest_usd_each = 1\n";
    assert_eq!(listed(&format!("{text}{price}")), None, "they have a price");
}

/// Returns the report of `weir check --connect` on an upstream: its attempts and its exit code.
async fn connected(text: &str, key: &str) -> (Vec<Value>, String, Option<i32>) {
    let (text, key) = (text.to_owned(), key.to_owned());
    let ran = tokio::task::spawn_blocking(move || {
        let folder = Folder::new();
        let path = folder.write("weir.toml", &text);
        let run = |more: &[&str]| {
            let mut command = weir(&["check", "--connect", "--config", &path]);
            said(command.args(more).env("OWN_KEY", &key))
        };
        let (json, code) = run(&["--json"]);
        let found: Value = serde_json::from_str(&json).expect(&json);
        let (words, _) = run(&[]);
        (found["tried"].as_array().expect("a list").clone(), words, code)
    });
    ran.await.expect("it ran")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_is_tried_where_asked() {
    let start = |options| async move { Server::start(options).await.expect("a free port") };
    let only_v1 = start(Options { only_v1: true, ..Options::default() }).await;
    let keyed = start(Options { require_key: Some("sk-good".into()), ..Options::default() }).await;
    let [root, api, keyed_api] = [(&only_v1, ""), (&only_v1, "/v1"), (&keyed, "/v1")]
        .map(|(server, path)| format!("[upstream]\nurl = \"http://{}{path}\"\n", server.addr));
    let provider_key = format!("{keyed_api}api_key = \"env:OWN_KEY\"\n");
    for (text, key, expected, code) in [
        (&root, "", vec![("upstream.url", "fails", "/v1: set the URL to http://")], 2),
        (&api, "", vec![("upstream.url", "works", "models; weir has no key for it")], 0),
        (&keyed_api, "", vec![("upstream.url", "works", "requires a key (401")], 0),
        (
            &provider_key,
            "sk-bad",
            vec![("upstream.api_key", "fails", "Put a valid key into the variable OWN_KEY")],
            2,
        ),
        (
            &provider_key,
            "sk-good",
            vec![
                ("upstream.url", "works", " models"),
                ("upstream.api_key", "works", "answered a question of a few tokens"),
            ],
            0,
        ),
    ] {
        let (tried, words, ended) = connected(text, key).await;
        assert_eq!(ended, Some(code), "{text}: {words}");
        assert_eq!(
            (&tried[0]["key"], &tried[0]["outcome"]),
            (&json!("store.path"), &json!("works"))
        );
        assert_eq!(tried.len(), expected.len() + 1, "{tried:?}");
        for (tried, (key, outcome, part)) in tried[1..].iter().zip(expected) {
            assert_eq!(
                (&tried["key"], &tried["outcome"]),
                (&json!(key), &json!(outcome)),
                "{tried}"
            );
            let message = tried["message"].as_str().expect("text");
            assert!(message.contains(part), "{message}");
            assert!(words.lines().any(|line| line.ends_with(message)), "{words}");
        }
        assert!(key.is_empty() || !words.contains(key), "{words}");
    }
    let questions = keyed.requests().into_iter().filter(|seen| seen.method == "POST");
    let questions: Vec<_> = questions.collect();
    assert_eq!(questions.len(), 2, "one for each run with the good key");
    assert!(questions.iter().all(|seen| seen.completion_tokens.is_some_and(|tokens| tokens <= 16)));
}

#[test]
fn kept_conversations_without_room_are_told() {
    let folder = Folder::new();
    let room = "[server]\nmax_body_bytes = 1024\nmax_bodies_in_flight_bytes = 4194304\n";
    let keys = "[auth]\nmode = \"keys\"\n[upstream]\napi_key = \"env:OWN_KEY\"\n";
    let key = "conversations.max_bytes.conversation";
    let (found, code) = checked(&folder, &format!("{room}[conversations]\nenabled = true\n"), &[]);
    assert_eq!((code, &found["problems"][0]["key"]), (Some(2), &json!(key)));
    let cure = "raise that one to 8388608";
    assert!(found["problems"][0]["message"].to_string().contains(cure), "{found}");
    let path = folder.path("weir.toml");
    let output = weir(&["serve", "--config", &path]).output().expect("weir starts");
    let refused = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{refused}");
    assert!(refused.contains(key) && refused.contains(cure), "{refused}");
    // A single key may keep them, too.
    let (found, code) = checked(&folder, &format!("{room}{keys}"), &[]);
    assert_eq!((code, &found["warnings"][0]["key"]), (Some(0), &json!(key)));
    assert!(found["warnings"][0]["message"].to_string().contains(cure), "{found}");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--config", &path];
    let started = Serving::run(weir(&serve).env("OWN_KEY", "sk-1"));
    assert!(
        started.greeting.contains(key) && started.greeting.contains(cure),
        "{}",
        started.greeting
    );
    let more_room = room.replace("4194304", "4194305");
    for text in [room.to_owned(), keys.to_owned(), format!("{more_room}{keys}")] {
        let (found, code) = checked(&folder, &text, &[]);
        assert_eq!((code, &found["warnings"]), (Some(0), &json!([])), "{text}");
    }
}
