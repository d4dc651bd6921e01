//! Seeds of the fuzz targets, and all their prefixes, tested with the fuzz targets' own properties
//! without a fuzzer. Finds nothing new; `fuzz/README.md` explains how to fuzz.

#[path = "../../fuzz/src/lib.rs"]
mod properties;

use std::path::Path;

use properties::{body, config, decode, protocols, readers, recall_tool, sse, strip_usage, target};
use proptest::prelude::*;

/// Seeds up to this length are also tried cut off at each byte.
const MAX_CUT_BYTES: usize = 2048;

/// Passes each seed of a target to `check`; a failure's output ends with the name of the seed that
/// failed.
fn try_seeds(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let entries = std::fs::read_dir(&folder).expect("a target has seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    for path in paths {
        let seed = std::fs::read(&path).expect("a seed is readable");
        eprintln!("{}", path.display());
        check(&seed);
        if seed.len() <= MAX_CUT_BYTES {
            (0..seed.len()).for_each(|end| check(&seed[..end]));
        }
    }
}

#[test]
fn seeds_of_body() {
    try_seeds("body", body::check);
}

#[test]
fn seeds_of_protocols() {
    try_seeds("protocols", protocols::check);
}

#[test]
fn seeds_of_sse() {
    try_seeds("sse", sse::check);
}

#[test]
fn seeds_of_strip_usage() {
    try_seeds("strip_usage", strip_usage::check);
}

#[test]
fn seeds_of_recall_tool() {
    try_seeds("recall_tool", recall_tool::check);
}

#[test]
fn seeds_of_decode() {
    try_seeds("decode", decode::check);
}

#[test]
fn seeds_of_readers() {
    try_seeds("readers", readers::check);
}

/// The fuzzer's dictionary has the keys of the configuration.
#[test]
fn the_dictionary_of_config_is_true() {
    let keys = include_str!("../../config/default.toml");
    let words = include_str!("../../fuzz/dictionaries/config.dict").lines();
    let words = words.filter_map(|line| line.strip_prefix('"')?.strip_suffix(" = \""));
    for word in words {
        assert!(keys.contains(&format!("{word} = ")), "{word} is no key");
    }
}

#[test]
fn seeds_of_config() {
    try_seeds("config", config::check);
}

#[test]
fn seeds_of_target() {
    try_seeds("target", target::check);
}

/// Generates a stream of objects with usage among their members, with varied spelling and spacing.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let space = || prop::sample::select(vec!["", "", "", " ", "\n", "\t "]);
    let members = vec![
        r#""usage"@:@null"#,
        r#""usage"@:@{"a":[1,{}]}"#,
        r#""us\u0061ge"@:@1"#,
        r#""choices":[@]"#,
        r#""choices":[{"x":1}]"#,
        r#""id":"q\"\\""#,
        r#""x":null"#,
        r#""x"@:@{@}"#,
        r#""model":"m""#,
        r#""y":"usage""#,
        r#""z":12.5e3"#,
    ];
    let member = (prop::sample::select(members), space(), space(), space());
    let member = member.prop_map(|(member, inside, before, after)| {
        format!("{before}{}{after}", member.replace('@', inside))
    });
    let object = (prop::collection::vec(member, 0..6), space(), space());
    let object = object
        .prop_map(|(members, before, after)| format!("{before}{{{}}}{after}", members.join(",")));
    let end = prop::sample::select(vec!["\n", "\r", "\r\n"]);
    let other =
        prop::sample::select(vec!["", "", "", "event: e\n", "id: 1\r", ": c\r\n", "\u{feff}"]);
    let event = (object, end, other, prop::sample::select(vec!["data: ", "data:"]));
    let event = event.prop_map(|(object, end, other, name)| {
        let lines: String = object.split('\n').map(|line| format!("{name}{line}{end}")).collect();
        format!("{other}{lines}{end}")
    });
    prop::collection::vec(event, 0..4).prop_map(|events| events.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn usage_is_taken_out_by_the_book(
        limit: u8,
        cuts: u8,
        frames in frames(),
        noise in prop::collection::vec(any::<u8>(), 0..3),
        at: prop::sample::Index,
    ) {
        strip_usage::check(&[&[limit, cuts][..], &frames].concat());
        let at = at.index(frames.len() + 1);
        let spoilt = [&[limit, cuts][..], &frames[..at], &noise, &frames[at..]].concat();
        strip_usage::check(&spoilt);
    }
}
