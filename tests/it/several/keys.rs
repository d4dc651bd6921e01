//! Changes made through one instance take effect in all.

use serde_json::{Value, json};

use super::setting::{HEADER, Shared};
use crate::budgeted::setting::chat;
use crate::cli::weir;
use crate::keys::setting::bearer;
use crate::server::harness::{ask, ask_until};

fn run(shared: &Shared, arguments: &[&str]) -> Value {
    let mut command = weir(arguments);
    let output = shared.told(command.arg("--json")).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test]
#[ignore = "needs PostgreSQL and Redis"]
async fn a_key_that_is_revoked_anywhere_is_revoked_everywhere() {
    let shared = Shared::start().await;
    let settings = [
        ("WEIR_AUTH__MODE", "keys"),
        ("WEIR_ADMIN__LISTEN", "off"),
        ("WEIR_UPSTREAM__API_KEY", "env:PROVIDER"),
        ("PROVIDER", "sk-provider"),
    ];
    let weirs = [shared.serve(&settings), shared.serve(&settings)];
    let made = run(&shared, &["keys", "create", "ci", "--team", "a", "--requests-per-minute", "5"]);
    let secret = made["secret"].as_str().expect("it is shown");
    let request = chat(&bearer(secret), 3, json!({}));
    for weir in &weirs {
        assert_eq!(ask(weir.address, &request).await.status(), 200, "made elsewhere, good here");
    }
    // Three more of five in a minute, counted by any instance.
    let mut statuses = Vec::new();
    for number in 0..6 {
        statuses.push(ask(weirs[number % 2].address, &request).await.status());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429], "the minute is everybody's");
    run(&shared, &["keys", "revoke", made["id"].as_str().expect("it has one")]);
    for weir in &weirs {
        ask_until(weir.address, &request, 401).await;
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL and Redis"]
async fn a_model_of_any_name_is_in_its_budget_and_stays_in_it() {
    let shared = Shared::start().await;
    shared.set("model:*/tokens/day", "1000").await;
    let weir = shared.serve(&[]);
    for name in ["no name\0", &"m".repeat(1000)] {
        let request = chat(HEADER, 300, json!({"model": name, "max_tokens": 600}));
        let mut left = Vec::new();
        let mut used = Vec::new();
        for _ in 0..2 {
            let answer = ask(weir.address, &request).await;
            assert_eq!(answer.status(), 200);
            let told = answer.header("x-weir-budget-left-tokens").expect("it is in a budget");
            left.push(told.parse::<u64>().expect("a number"));
            let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
            used.push(body["usage"]["total_tokens"].as_u64().expect("it is reported"));
            // The amount spent is read from the journal, by its name there.
            shared.redis.empty();
        }
        assert_eq!(left[0] - left[1], used[0]);
    }
}
