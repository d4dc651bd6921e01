//! Exports as the providers' APIs answer, against a ledger.

use super::*;
use weir_store::budget::calendar::read_day;

const OPENAI: &str = r#"{"object":"page","data":[{"object":"bucket","start_time":1796083200,"end_time":1796169600,"results":[
{"object":"organization.usage.completions.result","input_tokens":5000,"output_tokens":700,"input_cached_tokens":3000,"input_audio_tokens":0,"num_model_requests":9,"project_id":null,"user_id":null,"api_key_id":"key_a","model":"gpt-4o-2024-08-06","batch":null},
{"object":"organization.usage.completions.result","input_tokens":100,"output_tokens":10,"input_cached_tokens":0,"num_model_requests":1,"api_key_id":"key_b","model":"gpt-4o-2024-08-06"}]}],"has_more":false,"next_page":null}"#;
const OPENAI_COSTS: &str = r#"{"object":"page","data":[{"object":"bucket","start_time":1796083200,"end_time":1796169600,"results":[
{"object":"organization.costs.result","amount":{"value":0.5,"currency":"usd"},"line_item":"gpt-4o-2024-08-06, input","project_id":null},
{"object":"organization.costs.result","amount":{"value":0.25,"currency":"usd"},"line_item":"gpt-4o-2024-08-06, output","project_id":null}]}]}"#;
const ANTHROPIC: &str = r#"{"data":[{"starting_at":"2026-12-01T00:00:00Z","ending_at":"2026-12-02T00:00:00Z","results":[
{"uncached_input_tokens":1500,"cache_creation":{"ephemeral_1h_input_tokens":1000,"ephemeral_5m_input_tokens":500},"cache_read_input_tokens":200,"output_tokens":500,"server_tool_use":{"web_search_requests":10},"api_key_id":null,"workspace_id":null,"model":"claude-sonnet-4-5-20250929","service_tier":"standard","context_window":"0-200k"}]}],"has_more":false,"next_page":null}"#;
const ANTHROPIC_COSTS: &str = r#"{"data":[{"starting_at":"2026-12-01T00:00:00Z","ending_at":"2026-12-02T00:00:00Z","results":[
{"currency":"USD","amount":"123.78912","workspace_id":null,"description":"Claude Sonnet 4.5 Usage - Input Tokens","cost_type":"tokens","context_window":"0-200k","model":"claude-sonnet-4-5-20250929","service_tier":"standard","token_type":"uncached_input_tokens"}]}]}"#;

fn day() -> u64 {
    read_day("2026-12-01").expect("a day")
}

fn counted(model: &str, amounts: [u64; 6]) -> ModelDay {
    ModelDay { day: day(), model: model.to_owned(), amounts: amounts.map(Some) }
}

/// Name of a model without its provider and its date.
fn one_name(model: &str) -> String {
    model.trim_start_matches("openai/").trim_end_matches("-2024-08-06").to_owned()
}

#[test]
fn each_export_is_read_by_day_model_and_kind() {
    let table = "usage_date_utc,model_version,api_key,usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,usage_output_tokens\n\
                 2026-12-01,claude-sonnet-4-5-20250929,k,1500,500,1000,200,500\n";
    let costs = "start_time,end_time,amount_value,amount_currency,line_item\n\
                 1796083200,1796169600,0.75,usd,\"gpt-4o-2024-08-06, input\"\n";
    let none = None;
    for (text, model, amounts) in [
        (OPENAI, "gpt-4o-2024-08-06", [Some(9), Some(2000), Some(3000), none, Some(700), none]),
        (OPENAI_COSTS, "gpt-4o-2024-08-06", [none, none, none, none, none, Some(500_000_000)]),
        (
            ANTHROPIC,
            "claude-sonnet-4-5-20250929",
            [none, Some(1500), Some(200), Some(1500), Some(500), none],
        ),
        (
            ANTHROPIC_COSTS,
            "claude-sonnet-4-5-20250929",
            [none, none, none, none, none, Some(1_237_891_200)],
        ),
        (
            table,
            "claude-sonnet-4-5-20250929",
            [none, Some(1500), Some(200), Some(1500), Some(500), none],
        ),
        (costs, "gpt-4o-2024-08-06", [none, none, none, none, none, Some(750_000_000)]),
    ] {
        let export = read(text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(export.days, day()..day() + 1, "{text}");
        let expected = ModelDay { day: day(), model: model.to_owned(), amounts };
        assert_eq!(export.counted[0], expected, "{text}");
    }
    let of_key = read(OPENAI, Some("key_b")).expect("an export");
    assert_eq!((of_key.counted.len(), of_key.counted[0].amounts[0]), (1, Some(1)));
}

#[test]
fn what_is_no_export_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "it has no days"),
        ("{\"data\":[]}", "it has no days"),
        ("{\"a\":1}", "it has no `data`"),
        ("{\"data\":[{\"results\":[]}]}", "neither start_time nor starting_at"),
        (
            "{\"data\":[{\"start_time\":1796083200,\"results\":[{\"x\":1}]}]}",
            "without a known count",
        ),
        (
            "{\"data\":[{\"start_time\":1796083200,\"results\":[{\"amount\":{\"value\":1,\"currency\":\"eur\"}}]}]}",
            "amounts are in eur",
        ),
        ("{\"data\":", "not JSON"),
        ("a,b\n1,2\n", "row 1 has no day"),
    ] {
        let error = read(text, None).expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn differences_have_a_name() {
    let exports = [OPENAI, OPENAI_COSTS].map(|text| read(text, None).expect("an export"));
    let agreeing = [10, 2100, 3000, 0, 710, 750_000_000];
    let changed = |kind: Measured, amount: u64| {
        let mut amounts = agreeing;
        amounts[kind as usize] = amount;
        vec![counted("openai/gpt-4o", amounts)]
    };
    for (ledger, expected) in [
        (vec![counted("gpt-4o", agreeing)], vec![]),
        (changed(Measured::Input, 2110), vec![]),
        (changed(Measured::Input, 1000), vec![(Measured::Input, Difference::MissingHere)]),
        (changed(Measured::Output, 900), vec![(Measured::Output, Difference::MissingThere)]),
        (changed(Measured::Output, 1420), vec![(Measured::Output, Difference::TwiceHere)]),
        (changed(Measured::Requests, 5), vec![(Measured::Requests, Difference::TwiceThere)]),
        (changed(Measured::Cost, 600_000_000), vec![(Measured::Cost, Difference::PriceMoved)]),
        (
            vec![],
            [
                Measured::Requests,
                Measured::Input,
                Measured::Cached,
                Measured::Output,
                Measured::Cost,
            ]
            .map(|kind| (kind, Difference::MissingHere))
            .to_vec(),
        ),
    ] {
        let compared = compare(&ledger, &exports, 10, &one_name);
        let differing: Vec<_> = compared
            .iter()
            .filter(|own| own.verdict != Difference::Agrees)
            .map(|own| (own.kind, own.verdict))
            .collect();
        assert_eq!(differing, expected, "{ledger:?}");
    }
}

#[test]
fn an_export_without_models_is_compared_with_all() {
    let export = Export {
        days: day()..day() + 1,
        counted: vec![ModelDay {
            day: day(),
            model: String::new(),
            amounts: [Some(3), None, None, None, None, None],
        }],
    };
    let other_day = ModelDay { day: day() + 1, ..counted("c", [9; 6]) };
    let ledger = [counted("a", [1; 6]), counted("b", [2; 6]), other_day];
    let compared = compare(&ledger, &[export], 0, &one_name);
    assert_eq!(compared.len(), 1);
    assert_eq!((compared[0].ledger, compared[0].verdict), (3, Difference::Agrees));
}

#[test]
fn only_what_an_export_can_hold_is_compared() {
    let costs = OPENAI_COSTS.replace("-08-06, output", "-08-06, output\"},{\"amount\":{\"value\":0.01,\"currency\":\"usd\"},\"line_item\":\"text-embedding-3-small, input");
    let exports = [OPENAI, &costs].map(|text| read(text, None).expect("an export"));
    let ledger = [
        counted("gpt-4o", [10, 2100, 3000, 0, 710, 750_000_000]),
        counted("claude-sonnet-4-5", [5; 6]),
        counted("text-embedding-3-small", [7, 500, 0, 0, 0, 10_000_000]),
    ];
    let compared = compare(&ledger, &exports, 10, &one_name);
    assert!(!compared.iter().any(|own| own.verdict.differs()), "{compared:?}");
    let of = |model: &str| compared.iter().filter(|own| own.model == model).count();
    assert_eq!([of("gpt-4o"), of("text-embedding-3-small")], [5, 1], "the costs have cost alone");
    let expected = "not in these exports: claude-sonnet-4-5\n6 of 6 figures agree.\n";
    assert_eq!(text(&compared, false), expected);
}

#[test]
fn a_table_lists_what_differs() {
    let exports = [OPENAI, OPENAI_COSTS].map(|text| read(text, None).expect("an export"));
    let ledger = [counted("gpt-4o", [10, 1000, 3000, 0, 710, 750_000_000])];
    let compared = compare(&ledger, &exports, 10, &one_name);
    let expected = "\
day         model                     kind          ledger    provider
2026-12-01  gpt-4o                    input          1,000       2,100
            missing in the ledger (+110.0 %)
4 of 5 figures agree.
";
    assert_eq!(text(&compared, false), expected);
    assert_eq!(text(&compared, true).lines().count(), 8);
}
