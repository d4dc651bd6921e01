//! Journal of requests in every place: each request counts once, and no request keeps another from
//! counting.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::tz::TimeZone;
use proptest::prelude::*;
use weir_store::budget::{Budget, BudgetId, Measure, Scope, ScopeKind};
use weir_store::budgets::SpentQuery;
use weir_store::counters::{Counters, Listed};
use weir_store::ledger::{
    Attribution, Caller, Column, DAY_MS, FAILED, Filter, Flags, Intent, KeyNames, MAX_FIGURE,
    MAX_ROWS_A_TENANT_DAY, MAX_TEXT_BYTES, OTHER, RequestEnd, RequestId, RequestQuery, SeriesQuery,
    Settlement, Totals, UsageQuery,
};
use weir_store::{Store, Tenant};

use super::in_every_place;
use super::places::{ALICE, BOB, Place, SqliteMemory};

/// Reference time of this file: the first moment of its day.
const NOW: u64 = 20_800 * DAY_MS;

pub fn id(number: u64) -> RequestId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    RequestId::new(NOW + number, random)
}

/// Builds a request in open mode, by its number.
pub fn intent(number: u64) -> Intent {
    Intent {
        id: id(number),
        begun_ms: NOW + number,
        caller: Caller { tenant: ALICE, key: None },
        route: "/v1/chat/completions".to_owned(),
        model: "gpt-4.1".to_owned(),
        upstream: "default".to_owned(),
        stream: true,
        action: "compact".to_owned(),
        zone: "green".to_owned(),
        attribution: Attribution {
            conversation: Some("c 1".to_owned()),
            agent: Some("codex".to_owned()),
            parent: None,
            class: Some("main".to_owned()),
            tag: Some("search".to_owned()),
        },
        received_tokens: Some(2000),
        sent_tokens: Some(1000),
        max_output_tokens: Some(500),
        plan_ms: Some(3),
        held_nano_usd: Some(6_000_000),
        held_tokens: Some(1500),
    }
}

pub fn complete() -> Settlement {
    Settlement {
        outcome: "complete".to_owned(),
        status: Some(200),
        prompt_tokens: Some(1001),
        completion_tokens: Some(100),
        cached_tokens: Some(0),
        cost_nano_usd: Some(5_000_000),
        saved_nano_usd: Some(-70),
        first_byte_ms: Some(4),
        total_ms: Some(50),
        ..Settlement::default()
    }
}

fn failed() -> Settlement {
    Settlement { outcome: "upstream".to_owned(), status: Some(401), ..Settlement::default() }
}

pub async fn settle(store: &Store, intent: Intent, settlement: Settlement) -> bool {
    let settled = store.settle_request(Arc::new(intent), settlement).await;
    settled.expect("the store can be written")
}

async fn it_is_told_what_became_of_single_requests(place: impl Place) {
    let (store, other) = (place.handle(), place.handle());
    for number in 1..=3 {
        store.open_request(&intent(number)).await.expect("it can be written");
    }
    assert!(settle(&store, intent(2), complete()).await);
    store.release_request(id(3)).await.expect("it can be written");
    let ended = RequestEnd::Ended { nano_usd: 5_000_000, tokens: 1101 };
    let expected = vec![ended, RequestEnd::Unknown, RequestEnd::Open, RequestEnd::Unknown];
    for handle in [store, other] {
        let told = handle.request_ends([2, 4, 1, 3].map(id).into()).await;
        assert_eq!(told, Ok(expected.clone()));
    }
}

/// Returns the sums over the whole store.
pub async fn total(store: &Store) -> Totals {
    let rows = store.usage(UsageQuery::default()).await.expect("it can be read");
    rows.first().map(|row| row.totals).unwrap_or_default()
}

pub async fn rows(store: &Store) -> Vec<weir_store::ledger::RequestRow> {
    store.requests(RequestQuery::default()).await.expect("it can be read")
}

async fn a_request_counts_once(place: impl Place) {
    let (first, other) = (place.handle(), place.handle());
    first.open_request(&intent(1)).await.expect("it can be written");
    assert_eq!(rows(&other).await, [], "it has not ended");
    assert_eq!(total(&other).await, Totals::default());
    assert!(settle(&first, intent(1), complete()).await);
    assert!(!settle(&first, intent(1), failed()).await, "it has ended");
    assert!(!settle(&other, intent(1), complete()).await, "for every handle");
    let expected = Totals {
        requests: 1,
        received_tokens: 2000,
        sent_tokens: 1000,
        prompt_tokens: 1001,
        completion_tokens: 100,
        cost_nano_usd: 5_000_000,
        saved_nano_usd: -70,
        ..Totals::default()
    };
    assert_eq!(total(&other).await, expected);
    assert!(!settle(&other, intent(1), complete()).await, "once it is in the sums as well");
    assert_eq!(total(&first).await, expected);
    let row = rows(&other).await.pop().expect("one row");
    assert_eq!(row.settlement, complete(), "zero is zero, and what is not known stays so");
    let told =
        Intent { max_output_tokens: None, held_nano_usd: None, held_tokens: None, ..intent(1) };
    let of_row = Intent {
        id: row.id,
        begun_ms: row.begun_ms,
        caller: row.caller,
        route: row.route,
        model: row.model,
        upstream: row.upstream,
        stream: row.stream,
        action: row.action,
        zone: row.zone,
        attribution: row.attribution,
        received_tokens: row.received_tokens,
        sent_tokens: row.sent_tokens,
        max_output_tokens: None,
        plan_ms: row.plan_ms,
        held_nano_usd: None,
        held_tokens: None,
    };
    assert_eq!(of_row, told);
}

async fn a_request_whose_intent_is_missing_counts_once(place: impl Place) {
    let store = place.handle();
    assert!(settle(&store, intent(1), complete()).await);
    assert!(!settle(&store, intent(1), complete()).await);
    assert_eq!(total(&store).await.requests, 1);
    assert!(!settle(&store, intent(1), complete()).await);
    assert_eq!(store.orphans(9).await, Ok(Vec::new()));
    assert_eq!(total(&store).await.requests, 1);
}

async fn what_was_not_sent_is_forgotten(place: impl Place) {
    let store = place.handle();
    store.open_request(&intent(1)).await.expect("it can be written");
    store.release_request(id(1)).await.expect("it can be written");
    store.release_request(id(2)).await.expect("what is not there can be forgotten");
    assert_eq!(total(&store).await, Totals::default());
    store.open_request(&intent(3)).await.expect("it can be written");
    assert!(settle(&store, intent(3), complete()).await);
    store.release_request(id(3)).await.expect("it can be written");
    assert_eq!(total(&store).await.requests, 1, "what has ended cannot be taken back");
}

async fn many_who_settle_at_once_settle_once(place: impl Place) {
    const SETTLERS: u64 = 4;
    const REQUESTS: u64 = 200;
    let handles = [place.handle(), place.handle()];
    for number in 0..REQUESTS {
        handles[0].open_request(&intent(number)).await.expect("it can be written");
    }
    let mut settlers = tokio::task::JoinSet::new();
    for settler in 0..SETTLERS {
        let store = handles[settler as usize % 2].clone();
        settlers.spawn(async move {
            let mut won = 0;
            for number in 0..REQUESTS {
                let has_won = settle(&store, intent(number), complete()).await;
                // Only the instance that opened a request settles it while it is open. If another
                // does so, both may be reported as first, but the request counts once.
                won += u64::from(has_won && settler % 2 == 0);
                if number % 50 == settler {
                    // Moves finished requests into the sums in between.
                    total(&store).await;
                }
            }
            won
        });
    }
    let won: u64 = settlers.join_all().await.iter().sum();
    assert!(won <= REQUESTS, "{won}");
    assert_eq!(total(&handles[1]).await.requests, REQUESTS);
    assert_eq!(total(&handles[1]).await.cost_nano_usd, REQUESTS * 5_000_000);
    for number in 0..REQUESTS {
        assert!(!settle(&handles[number as usize % 2], intent(number), complete()).await);
    }
    assert_eq!(rows(&handles[0]).await.len() as u64, REQUESTS);
}

async fn no_row_poisons_others(place: impl Place) {
    let store = place.handle();
    let long = "é".repeat(100_000);
    let texts = ["", "\0", "a\0b\x1b[2J\r\n", "'; DROP TABLE request; --", "\u{202e}x", &long];
    for (number, text) in (0..).zip(texts) {
        let names = || text.to_owned();
        let key = KeyNames { key: names(), team: names(), organisation: names(), user: names() };
        let absurd = Intent {
            caller: Caller { tenant: BOB, key: Some(Arc::new(key)) },
            route: names(),
            model: names(),
            upstream: names(),
            action: names(),
            zone: names(),
            attribution: Attribution {
                conversation: Some(names()),
                agent: Some(names()),
                parent: Some(names()),
                class: Some(names()),
                tag: Some(names()),
            },
            begun_ms: if number % 2 == 0 { u64::MAX } else { NOW },
            received_tokens: Some(u64::MAX),
            sent_tokens: Some(u64::MAX),
            max_output_tokens: Some(u64::MAX),
            plan_ms: Some(u64::MAX),
            ..intent(number)
        };
        let figure = Some(u64::MAX);
        let settlement = Settlement {
            outcome: names(),
            status: Some(u16::MAX),
            prompt_tokens: figure,
            completion_tokens: figure,
            cached_tokens: figure,
            cache_write_tokens: figure,
            reasoning_tokens: figure,
            cost_nano_usd: figure,
            saved_nano_usd: Some(i64::MIN),
            planned_saved_nano_usd: Some(i64::MIN),
            flags: Flags::UNPRICED | Flags::ESTIMATED,
            first_byte_ms: figure,
            total_ms: figure,
        };
        store.open_request(&absurd).await.expect("any text will do");
        assert!(settle(&store, absurd, settlement).await, "{text:.20?}");
        assert!(settle(&store, intent(100 + number), complete()).await);
    }
    let sound = UsageQuery {
        only: Filter { tenant: Some(ALICE), ..Filter::default() },
        ..UsageQuery::default()
    };
    let sound = store.usage(sound).await.expect("it can be read")[0].totals;
    assert_eq!((sound.requests, sound.prompt_tokens), (6, 6006));
    let all = total(&store).await;
    assert_eq!(all.prompt_tokens, 6006 + 6 * MAX_FIGURE);
    assert_eq!(all.saved_nano_usd, -6 * 70 - 6 * (1 << 53));
    assert_eq!(all.planned_saved_nano_usd, -6 * (1 << 53));
    for row in rows(&store).await {
        for text in [&row.model, &row.route, &row.settlement.outcome, &row.upstream, &row.zone] {
            assert!(text.len() <= MAX_TEXT_BYTES, "{text}");
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}

async fn sums_stop_at_what_can_be_counted(place: impl Place) {
    let store = place.handle();
    let most =
        Settlement { cost_nano_usd: Some(u64::MAX), saved_nano_usd: Some(i64::MAX), ..complete() };
    // 1,200 times 2^53 is more than a number of 64 bits holds.
    for number in 0..1200 {
        let caller = Caller { tenant: Tenant([(number % 3) as u8 + 7; 16]), key: None };
        assert!(settle(&store, Intent { caller, ..intent(number) }, most.clone()).await);
    }
    let all = total(&store).await;
    assert_eq!(all.requests, 1200);
    assert_eq!(all.cost_nano_usd, 1200 << 53, "each third is below the limit");
    assert_eq!(all.saved_nano_usd, i64::MAX, "what is too much is the most there is");
}

async fn names_that_callers_make_up_do_not_fill_the_sums(place: impl Place) {
    let store = place.handle();
    let by = vec![Column::Tenant, Column::Model];
    let told = || async {
        let query = UsageQuery { by: by.clone(), ..UsageQuery::default() };
        let told = store.usage(query).await.expect("it can be read").into_iter();
        let named = |row: weir_store::ledger::UsageRow| {
            let name = (row.tenant.expect("as asked").0, row.shown(Column::Model));
            (name, row.totals.requests)
        };
        told.map(named).collect::<BTreeMap<_, _>>()
    };
    // A model with a budget keeps its row, however late it comes.
    let id = BudgetId::parse("model:budgeted/usd/month").expect("a budget");
    let budget = Budget { id, limit: 1, warn_permille: None };
    store.set_budget(budget, NOW).await.expect("it can be set");
    // Rejected credentials belong to no caller.
    for number in 0..30 {
        let caller = Caller { tenant: Tenant([number as u8 + 50; 16]), key: None };
        let model = format!("made-up-{number}");
        assert!(settle(&store, Intent { caller, model, ..intent(number) }, failed()).await);
    }
    let nobody = (Tenant::ANONYMOUS.0, FAILED.to_owned());
    assert_eq!(told().await, BTreeMap::from([(nobody.clone(), 30)]));
    // Models of an authenticated caller: a limited number, and fewer that have only failed.
    let models = MAX_ROWS_A_TENANT_DAY + 10;
    for number in 0..models {
        let model = format!("model-{number}");
        assert!(settle(&store, Intent { model, ..intent(100 + number) }, complete()).await);
    }
    assert_eq!(total(&store).await.requests, 30 + models);
    for number in 0..5 {
        let model = "budgeted".to_owned();
        assert!(settle(&store, Intent { model, ..intent(7000 + number) }, complete()).await);
        let model = format!("made-up-{number}");
        assert!(settle(&store, Intent { model, ..intent(5000 + number) }, failed()).await);
        let model = format!("model-{number}");
        assert!(settle(&store, Intent { model, ..intent(6000 + number) }, complete()).await);
    }
    // Another caller's failures keep their model while it has few.
    let caller = Caller { tenant: Tenant([9; 16]), key: None };
    for number in 0..150 {
        let model = if number < 2 { "known".to_owned() } else { format!("wrong-{number}") };
        let settlement = if number == 0 { complete() } else { failed() };
        let intent = Intent { caller: caller.clone(), model, ..intent(8000 + number) };
        assert!(settle(&store, intent, settlement).await);
    }
    let told = told().await;
    let of = |model: &str| told.get(&(caller.tenant.0, model.to_owned())).copied();
    assert_eq!((of("known"), of("wrong-2"), of(FAILED)), (Some(2), Some(1), Some(49)));
    assert_eq!(told[&nobody], 30);
    assert_eq!(told[&(ALICE.0, FAILED.to_owned())], 5);
    assert_eq!(told[&(ALICE.0, OTHER.to_owned())], 10);
    assert_eq!(told[&(ALICE.0, "budgeted".to_owned())], 5);
    let named = told.iter().filter(|((_, model), _)| model.starts_with("model-"));
    assert_eq!(named.clone().count() as u64, MAX_ROWS_A_TENANT_DAY);
    assert_eq!(named.map(|(_, requests)| requests).sum::<u64>(), MAX_ROWS_A_TENANT_DAY + 5);
}

/// A conversation has the budget that is set for each, under its own caller.
async fn labels_of_each_caller_are_counted_from_rows(place: impl Place) {
    let store = place.handle();
    filled(&store).await;
    for (id, own) in [
        ("conversation:*/usd/total", ["key_0/c 0", "key_1/c 1", "key_2/c 2"].as_slice()),
        ("agent:*/tokens/total", &["key_0/agent 0", "key_0/agent 1", "key_1/agent 0"]),
        ("tag:*/tokens/total", &["key_0/tag 0", "key_0/tag 1"]),
    ] {
        let id = BudgetId::parse(id).expect("a budget");
        let budget = Budget { id, limit: 10_000, warn_permille: None };
        store.set_budget(budget.clone(), NOW).await.expect("it can be set");
        let counters = Counters::in_memory(store.clone(), TimeZone::UTC);
        let now_ms = NOW + 5 * DAY_MS;
        let listed = counters.listed(&store, vec![budget.clone()], now_ms).await.expect("counts");
        let mut members = Vec::new();
        for status in listed.into_iter().flat_map(Listed::all).skip(1) {
            members.push((status.scope.name.clone(), status.count.spent));
        }
        members.sort();
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert!(own.iter().all(|name| names.contains(name)), "{names:?}");
        let sum: u64 = members.iter().map(|(_, spent)| spent).sum();
        match budget.id.measure {
            // The twelfth has no conversation.
            Measure::NanoUsd => assert_eq!(sum, (1 << 11) - 1, "{members:?}"),
            Measure::Tokens => assert_eq!(sum, 12 * 1101, "{members:?}"),
        }
    }
    // A caller without a key has a place of its own.
    assert!(settle(&store, intent(900), complete()).await);
    let name = format!("{:032x}/c 1", u128::from_be_bytes(ALICE.0));
    let scope = Scope { kind: ScopeKind::Conversation, name };
    let query = |scope| SpentQuery {
        scope,
        measure: Measure::Tokens,
        from_ms: 0,
        bucket_ms: None,
        open: Vec::new(),
        wants_open: false,
    };
    let spent = store.spent(query(scope)).await.expect("it can be read").ended;
    assert_eq!(spent.iter().map(|(_, amount)| amount).sum::<u64>(), 1101);
}

/// Creates requests of two teams over three days.
async fn filled(store: &Store) {
    for number in 0..12 {
        let names = KeyNames {
            key: format!("key_{}", number % 3),
            team: format!("team {}", number % 2),
            organisation: "org".to_owned(),
            user: format!("user {}", number % 4),
        };
        let begun_ms = NOW + number % 3 * DAY_MS;
        let intent = Intent {
            id: RequestId::new(begun_ms, [number as u8; 10]),
            begun_ms,
            caller: Caller { tenant: [ALICE, BOB][number as usize % 2], key: Some(names.into()) },
            model: format!("model {}", number % 6),
            attribution: Attribution {
                conversation: (number != 11).then(|| format!("c {}", number % 3)),
                agent: Some(format!("agent {}", number % 2)),
                parent: (number % 2 == 1).then(|| "agent 0".to_owned()),
                class: Some(["main", "subagent"][number as usize % 2].to_owned()),
                tag: Some(format!("tag {}", number % 2)),
            },
            ..intent(0)
        };
        let flags = if number == 7 { Flags::ESTIMATED } else { Flags::default() };
        let cost_nano_usd = Some(1 << number);
        assert!(settle(store, intent, Settlement { flags, cost_nano_usd, ..complete() }).await);
    }
}

async fn sums_are_told_as_asked(place: impl Place) {
    let store = place.handle();
    filled(&store).await;
    let day = NOW / DAY_MS;
    let all = UsageQuery::default;
    let any = Filter::default;
    let text = |text: &str| Some(text.to_owned());
    let new_york = || jiff::tz::TimeZone::get("America/New_York").ok();
    // A query, and the costs of the expected rows in order: each request's cost is one bit.
    let cases: Vec<(UsageQuery, Vec<u64>)> = vec![
        (all(), vec![0b1111_1111_1111]),
        (
            UsageQuery { by: vec![Column::Day], ..all() },
            vec![0b0010_0100_1001, 0b0100_1001_0010, 0b1001_0010_0100],
        ),
        // In New York it is still the day before.
        (
            UsageQuery { by: vec![Column::Day], from_day: Some(day), zone: new_york(), ..all() },
            vec![0b0100_1001_0010, 0b1001_0010_0100],
        ),
        (UsageQuery { until_day: Some(day), zone: new_york(), ..all() }, vec![0b0010_0100_1001]),
        (UsageQuery { by: vec![Column::Team], ..all() }, vec![0b1010_1010_1010, 0b0101_0101_0101]),
        (
            UsageQuery { by: vec![Column::Tenant], ..all() },
            vec![0b1010_1010_1010, 0b0101_0101_0101],
        ),
        (
            UsageQuery { by: vec![Column::Key], limit: Some(2), ..all() },
            vec![0b1001_0010_0100, 0b0100_1001_0010],
        ),
        (
            UsageQuery {
                by: vec![Column::User],
                only: Filter { team: text("team 1"), ..any() },
                ..all()
            },
            vec![0b1000_1000_1000, 0b0010_0010_0010],
        ),
        (
            UsageQuery {
                by: vec![Column::Organisation, Column::Model, Column::Day],
                from_day: Some(day + 1),
                until_day: Some(day + 2),
                ..all()
            },
            vec![0b0100_0001_0000, 0b0000_1000_0010],
        ),
        (
            UsageQuery { only: Filter { tenant: Some(BOB), key: text("key_0"), ..any() }, ..all() },
            vec![0b0010_0000_1000],
        ),
        (
            UsageQuery {
                only: Filter {
                    organisation: text("org"),
                    user: text("user 3"),
                    model: text("model 1"),
                    ..any()
                },
                ..all()
            },
            vec![0b0000_1000_0000],
        ),
        (UsageQuery { only: Filter { model: text("' OR 1=1 --"), ..any() }, ..all() }, vec![]),
        (
            UsageQuery {
                only: Filter { model: text("none"), ..any() },
                by: vec![Column::Day],
                ..all()
            },
            vec![],
        ),
        (UsageQuery { limit: Some(0), ..all() }, vec![]),
    ];
    let labelled = vec![
        (
            UsageQuery { by: vec![Column::Conversation], ..all() },
            vec![0b1000_0000_0000, 0b0100_1001_0010, 0b0010_0100_1001, 0b0001_0010_0100],
        ),
        (
            UsageQuery { by: vec![Column::Agent, Column::Class, Column::Parent], ..all() },
            vec![0b1010_1010_1010, 0b0101_0101_0101],
        ),
        (
            UsageQuery {
                only: Filter { conversation: text("c 1"), tenant: Some(BOB), ..any() },
                ..all()
            },
            vec![0b0000_1000_0010],
        ),
        (
            UsageQuery {
                by: vec![Column::Day, Column::Key],
                only: Filter { agent: text("agent 1"), class: text("subagent"), ..any() },
                from_day: Some(day + 2),
                ..all()
            },
            vec![0b1000_0010_0000],
        ),
    ];
    let cases = cases.into_iter().chain(labelled);
    for (query, expected) in cases {
        let told = store.usage(query.clone()).await.expect("it can be read");
        let costs: Vec<u64> = told.iter().map(|row| row.totals.cost_nano_usd).collect();
        assert_eq!(costs, expected, "{query:?}");
    }
    let query = UsageQuery { by: vec![Column::Day, Column::Key], ..all() };
    let first = store.usage(query).await.expect("it can be read").remove(0);
    let names = (first.name(Column::Key), first.name(Column::Model));
    assert_eq!((first.day, names), (Some(day), (Some("key_0"), None)));
    assert_eq!(total(&store).await.estimated, 1);
}

async fn labels_of_rows_have_the_totals_of_their_days(place: impl Place) {
    let store = place.handle();
    filled(&store).await;
    let only = |only| UsageQuery { only, ..UsageQuery::default() };
    let text = |text: &str| Some(text.to_owned());
    // Both select the even numbers.
    let by_class = only(Filter { class: text("main"), ..Filter::default() });
    let by_team = only(Filter { team: text("team 0"), ..Filter::default() });
    let by_class = store.usage(by_class).await.expect("it can be read");
    let by_team = store.usage(by_team).await.expect("it can be read");
    assert_eq!(by_class[0].totals, by_team[0].totals);
    let by = vec![Column::Conversation, Column::Parent];
    let query = UsageQuery { by, ..UsageQuery::default() };
    let first = store.usage(query).await.expect("it can be read").remove(0);
    assert_eq!(first.name(Column::Conversation), Some(""), "the last has none");
    let names = (first.name(Column::Parent), first.name(Column::Agent));
    assert_eq!(names, (Some("agent 0"), None));
    // A request that its process left open keeps its labels.
    store.open_request(&intent(50)).await.expect("it can be written");
    assert!(settle(&store, intent(50), complete()).await);
    let row = rows(&store).await.into_iter().find(|row| row.id == id(50)).expect("it has ended");
    assert_eq!(row.attribution, intent(50).attribution);
}

async fn series_agree_with_the_rows(place: impl Place) {
    let store = place.handle();
    filled(&store).await;
    let late = Settlement { first_byte_ms: Some(u64::MAX), total_ms: None, ..complete() };
    let absurd = Intent { sent_tokens: Some(MAX_FIGURE), caller: bob(), ..intent(77) };
    assert!(settle(&store, absurd, Settlement { cost_nano_usd: Some(1 << 12), ..late }).await);
    let all = || SeriesQuery { from_ms: NOW, until_ms: NOW + 3 * DAY_MS, ..SeriesQuery::default() };
    let any = Filter::default;
    let text = |text: &str| Some(text.to_owned());
    // A query, and the start and costs of the expected rows: each request's cost is one bit.
    type Expected = Vec<(Option<u64>, u64)>;
    let days = [0b1_0010_0100_1001, 0b0100_1001_0010, 0b1001_0010_0100];
    let day = |number: usize| (Some(NOW + number as u64 * DAY_MS), days[number]);
    let cases: Vec<(SeriesQuery, Expected)> = vec![
        (all(), vec![(None, 0b1_1111_1111_1111)]),
        (SeriesQuery { every_ms: Some(DAY_MS), ..all() }, vec![day(0), day(1), day(2)]),
        (SeriesQuery { every_ms: Some(DAY_MS), limit: Some(2), ..all() }, vec![day(0), day(1)]),
        (
            SeriesQuery { from_ms: NOW + DAY_MS, until_ms: NOW + 2 * DAY_MS, ..all() },
            vec![(None, days[1])],
        ),
        (SeriesQuery { from_ms: NOW + 9 * DAY_MS, until_ms: u64::MAX, ..all() }, vec![]),
        (
            SeriesQuery { by: vec![Column::Class], ..all() },
            vec![(None, 0b1_0101_0101_0101), (None, 0b1010_1010_1010)],
        ),
        (
            SeriesQuery { only: Filter { agent: text("agent 1"), ..any() }, ..all() },
            vec![(None, 0b1010_1010_1010)],
        ),
        (SeriesQuery { only: Filter { team: text("' OR 1=1 --"), ..any() }, ..all() }, vec![]),
    ];
    for (query, expected) in cases {
        let found = store.series(query.clone()).await.expect("it can be read");
        let found: Expected =
            found.iter().map(|row| (row.start_ms, row.usage.totals.cost_nano_usd)).collect();
        assert_eq!(found, expected, "{query:?}");
    }
    let whole = store.series(all()).await.expect("it can be read").remove(0);
    assert_eq!(whole.usage.totals, total(&store).await, "as the daily totals");
    assert_eq!((whole.shortened, whole.usage.totals.requests), (12, 13));
    assert_eq!((whole.first_byte[0], whole.first_byte.iter().sum::<u64>()), (12, 13));
    assert_eq!((whole.total[2], whole.total.iter().sum::<u64>()), (12, 12), "one is not known");
    let by = vec![Column::Key, Column::User, Column::Model, Column::Conversation];
    let named = SeriesQuery { by, every_ms: Some(DAY_MS), limit: Some(1), ..all() };
    let first = store.series(named).await.expect("it can be read").remove(0).usage;
    let names = [Column::Key, Column::User, Column::Model].map(|column| first.name(column));
    assert_eq!(names, [Some(""), Some(""), Some("gpt-4.1")], "no key");
}

/// A caller without a key.
fn bob() -> Caller {
    Caller { tenant: BOB, key: None }
}

async fn requests_are_told_newest_first(place: impl Place) {
    let store = place.handle();
    filled(&store).await;
    let all = RequestQuery::default;
    let any = Filter::default;
    for (query, expected) in [
        (all(), vec![11, 8, 5, 2, 10, 7, 4, 1, 9, 6, 3, 0]),
        (RequestQuery { limit: Some(2), ..all() }, vec![11, 8]),
        (RequestQuery { until_ms: Some(NOW + DAY_MS), ..all() }, vec![9, 6, 3, 0]),
        (RequestQuery { from_ms: Some(NOW + 2 * DAY_MS), ..all() }, vec![11, 8, 5, 2]),
        (RequestQuery { from_ms: Some(u64::MAX), ..all() }, vec![]),
        (
            RequestQuery {
                only: Filter { tenant: Some(BOB), key: Some("key_0".into()), ..any() },
                ..all()
            },
            vec![9, 3],
        ),
        (
            RequestQuery {
                only: Filter { team: Some("team 1".into()), ..any() },
                limit: Some(1),
                ..all()
            },
            vec![11],
        ),
        (RequestQuery { flags: Flags::ESTIMATED, ..all() }, vec![7]),
        (RequestQuery { flags: Flags::ESTIMATED | Flags::UNPRICED, ..all() }, vec![7]),
        (RequestQuery { flags: Flags::CALLER_LEFT, ..all() }, vec![]),
        (
            RequestQuery { only: Filter { conversation: Some("c 2".into()), ..any() }, ..all() },
            vec![8, 5, 2],
        ),
    ] {
        let told = store.requests(query.clone()).await.expect("it can be read");
        let numbers: Vec<u8> = told.iter().map(|row| row.id.0[15]).collect();
        assert_eq!(numbers, expected, "{query:?}");
    }
}

async fn what_is_old_is_forgotten(place: impl Place) {
    let store = place.handle();
    filled(&store).await;
    let before = total(&store).await;
    let pruned = store.prune_requests(NOW + DAY_MS, NOW).await;
    assert_eq!(pruned, Ok(4));
    assert_eq!(rows(&store).await.len(), 8);
    assert_eq!(total(&store).await, before, "sums are kept for longer");
    let pruned = store.prune_requests(NOW + DAY_MS, NOW + 2 * DAY_MS - 1).await;
    assert_eq!(pruned, Ok(4), "the first day's, a row each");
    assert_eq!(total(&store).await.requests, 8);
    assert!(store.prune_requests(u64::MAX, u64::MAX).await.is_ok());
    assert_eq!((rows(&store).await.len(), total(&store).await.requests), (0, 0));
}

async fn output_is_learned_from_answers_that_ended(place: impl Place) {
    let store = place.handle();
    let learned = |model: &'static str| store.learned_output_tokens(model);
    assert_eq!(learned("gpt-4.1").await, Ok(None));
    let output = |tokens| Settlement { completion_tokens: tokens, ..complete() };
    let estimated = Settlement { flags: Flags::ESTIMATED, ..output(Some(9000)) };
    let rejected = Settlement { status: Some(500), ..output(Some(9000)) };
    let settlements = [output(Some(100)), output(Some(201)), output(None), estimated, rejected];
    for (number, settlement) in (0..).zip(settlements) {
        assert!(settle(&store, intent(number), settlement).await);
    }
    total(&store).await;
    assert_eq!(learned("gpt-4.1").await, Ok(Some(151)), "the mean, rounded up");
    assert_eq!(learned("gpt-4o").await, Ok(None));
    for number in 100..4000 {
        assert!(settle(&store, intent(number), output(Some(1000))).await);
        if number % 256 == 0 {
            total(&store).await;
        }
    }
    total(&store).await;
    let now = learned("gpt-4.1").await.expect("it can be read").expect("it is known");
    assert!((990..=1010).contains(&now), "old answers count for less: {now}");
}

fn figures() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![
        1 => Just(None),
        2 => Just(Some(0)),
        8 => (1..1_000_000u64).prop_map(Some),
        1 => any::<u64>().prop_map(Some),
    ]
}

prop_compose! {
    fn settlements()(
        status in prop_oneof![Just(None), Just(Some(200)), Just(Some(201)), Just(Some(429))],
        counts in [figures(), figures(), figures(), figures(), figures(), figures()],
        saved_nano_usd in prop::option::of(any::<i64>()),
        flags in prop::sample::subsequence(Flags::NAMES.to_vec(), 0..=6),
    ) -> Settlement {
        let [prompt, completion, cached, cache_write, reasoning, cost] = counts;
        let flags = flags.into_iter().fold(Flags::default(), |all, (flag, _)| all | flag);
        Settlement {
            outcome: "any".to_owned(),
            status,
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_tokens: cached,
            cache_write_tokens: cache_write,
            reasoning_tokens: reasoning,
            cost_nano_usd: cost,
            saved_nano_usd,
            flags,
            ..Settlement::default()
        }
    }
}

/// Sums the costs of requests directly from their rows.
async fn by_hand(store: &Store) -> Totals {
    let mut totals = Totals::default();
    for row in rows(store).await {
        let ended = row.settlement;
        let has = |flag| u64::from(ended.flags.any(flag));
        // Another attempt followed one that was replaced.
        let is_request = !ended.flags.any(Flags::REPLACED);
        let has_failed = is_request && !matches!(ended.status, Some(200..=299));
        totals.requests += u64::from(is_request);
        totals.failed += u64::from(has_failed);
        totals.estimated += has(Flags::ESTIMATED);
        totals.partly_priced += has(Flags::PARTLY_PRICED);
        totals.unpriced += has(Flags::UNPRICED);
        for (sum, figure) in [
            (&mut totals.received_tokens, row.received_tokens),
            (&mut totals.sent_tokens, row.sent_tokens),
            (&mut totals.prompt_tokens, ended.prompt_tokens),
            (&mut totals.completion_tokens, ended.completion_tokens),
            (&mut totals.cached_tokens, ended.cached_tokens),
            (&mut totals.cache_write_tokens, ended.cache_write_tokens),
            (&mut totals.reasoning_tokens, ended.reasoning_tokens),
            (&mut totals.cost_nano_usd, ended.cost_nano_usd),
        ] {
            *sum += figure.unwrap_or(0);
        }
        totals.saved_nano_usd += ended.saved_nano_usd.unwrap_or(0);
    }
    totals
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn sums_are_those_of_the_rows(
        requests in prop::collection::vec((0..50u64, 0..4u8, settlements()), 1..60)
    ) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let store = SqliteMemory::new().handle();
            for (number, tenant, settlement) in requests {
                let caller = Caller { tenant: Tenant([tenant; 16]), key: None };
                let model = format!("model {}", number % 5);
                settle(&store, Intent { caller, model, ..intent(number) }, settlement).await;
            }
            assert_eq!(total(&store).await, by_hand(&store).await);
        });
    }
}

in_every_place!(
    a_request_counts_once
    it_is_told_what_became_of_single_requests
    a_request_whose_intent_is_missing_counts_once
    what_was_not_sent_is_forgotten
    many_who_settle_at_once_settle_once
    no_row_poisons_others
    sums_stop_at_what_can_be_counted
    names_that_callers_make_up_do_not_fill_the_sums
    labels_of_each_caller_are_counted_from_rows
    sums_are_told_as_asked
    labels_of_rows_have_the_totals_of_their_days
    series_agree_with_the_rows
    requests_are_told_newest_first
    what_is_old_is_forgotten
    output_is_learned_from_answers_that_ended
);
