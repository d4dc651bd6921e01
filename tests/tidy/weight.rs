//! Weight of the tree: lines of code by folder, circles of imports, settings, names of types. Each has a
//! ceiling that moves downward; to raise one, say why next to it.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{self, Source};

/// Maximum lines of code in each crate and in the folders that a request passes, without tests, comments and
/// blank lines.
const MOST_LINES: &[(&str, usize)] = &[
    // Instruction files by their kind, odd lines of old results and users' own sentences stay in notes; chains of
    // a provider's tools, and constant parts of prompts. Limits by price. What a provider leaves out of a prompt.
    // Lines that the recall tool finds, marks of cuts inside a line, lists of tasks by their states. Searches and
    // counts that are made once, so that heavy requests cost less. Late results that go alone, parts in front of prompts.
    // Calls that wait for results, next to long ones, and messages without results whose calls are gone. Results
    // that come again, answers that questions are about. Failed calls, participants, files, pasted texts and values
    // that changed in notes, arguments by the room there is, images that leave.
    ("crates/weir-engine/src/compact/", 15_795),
    // Sizes of what observe mode plans; early compactions and plans without a body, for replays. Early compactions in records, and sizes that only a provider knows.
    ("crates/weir-engine/src/plan/", 1054),
    // Details of images. Pages in compressed objects.
    ("crates/weir-engine/src/tokens/", 2006),
    // Refusals as too long, failed answers and bounds of holds, as providers word them. Calls that are repeated,
    // with arguments and results of any form. Content by address, wordings without accents. Broken answers that
    // do not go on. Limits of 0, and references without a type, values
    // that grow in a body. Searches, pictures and fallbacks in the words of many providers. Answers that are none,
    // searches and lengths next to usage. Models inside tools, items by their id, names in escapes, content that is no
    // text. Searches and totals of more providers, dense texts, thinking that nobody asked for.
    ("crates/weir-engine/src/wire/", 11_400),
    // The compressor that judges whole messages.
    ("crates/weir-bench/src/", 1700),
    // The bill of conversations by the rules of providers' caches, readers of logs of gateways and agents, the
    // cheapest compactions, and the comparison with what providers' exports hold.
    ("crates/weir-eval/src/", 5780),
    // Savings that observe mode plans; amounts and numbers for people; budgets of conversations. Regions in prices.
    ("crates/weir-store/src/", 11_985),
    // Connections without a request give way, and a token reads the metrics alone.
    ("src/admin/", 2020),
    // The commands `savings`, `tune`, `reconcile` and `models show`. Pipes are no files. Names of keys in `usage`.
    ("src/cli/", 8665),
    // Limits by price.
    ("src/config/", 4535),
    // What one tenant's traffic teaches, names that count as the model that answers, and responses in the background.
    // Plans of observe mode, and the brake on loops. Names that nobody has answered yet, advisors' prices.
    // Ends of requests in groups. Prices a request of models that a body names, conversations that run one.
    // Compactions after pauses. Terms that an answer does not report. Results read again. Answers of routers, attempts
    // of messages with fallbacks. Redirects, thinking that is bound by tenant.
    ("src/proxy/", 18_850),
    // The entrance of `weir run`. Connections between requests give way, limits of open files, shares of bodies.
    ("src/server/", 2530),
    // Connections that are open, of both listeners.
    ("src/tls/", 260),
    // Answers that fail after their usage is read, redirects to other origins.
    ("src/upstream/", 1890),
];
/// Maximum files that import one another in a circle, in each crate and in a folder of one.
const MOST_IN_CIRCLE: &[(&str, &str, usize)] = &[
    ("crates/weir-engine/src/", "", 4),
    ("crates/weir-eval/src/", "", 2),
    ("crates/weir-store/src/", "", 4),
    // Commands that share flags and files in `cli`, among them `models show`, `tune` and `reconcile`.
    ("src/", "", 41),
    ("src/", "proxy/", 2),
];
/// Lines below a ceiling of lines that need no lower one, at least.
const SLACK_LINES: usize = 50;
/// Maximum settings in `config/default.toml`.
const MOST_SETTINGS: usize = 120;
/// Maximum names that three types or more have.
const MOST_SHARED_NAMES: usize = 17;

/// Returns what exceeds its ceiling, and what is so far below that the ceiling must follow.
pub fn findings(files: &BTreeMap<String, Source>, settings: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, now: usize, most: usize, slack: usize| {
        if now > most {
            found.push(format!("{what}: {now}, at most {most}"));
        } else if now + slack < most {
            found.push(format!("{what}: {now}, so lower its ceiling of {most}"));
        }
    };
    for (folder, most) in MOST_LINES {
        let own = files.iter().filter(|(path, _)| path.starts_with(folder));
        let lines = own.map(|(_, source)| lines_of_code(source)).sum();
        check(&format!("lines of code in {folder}"), lines, *most, SLACK_LINES.max(most / 20));
    }
    for (base, folder, most) in MOST_IN_CIRCLE {
        let mut imports = imports(files, base);
        imports.retain(|file, _| file.starts_with(folder));
        let circle = largest_circle(&imports);
        check(
            &format!("files in a circle in {base}{folder} ({})", circle.join(", ")),
            circle.len(),
            *most,
            0,
        );
    }
    check("settings", settings.lines().filter(|line| is_setting(line)).count(), MOST_SETTINGS, 0);
    let shared = shared_names(files);
    check("names of three types or more", shared, MOST_SHARED_NAMES, 0);
    found
}

fn lines_of_code(source: &Source) -> usize {
    source.shipped.lines().filter(|line| !line.trim().is_empty()).count()
}

/// Whether a line of the default configuration is a setting, in force or commented out.
fn is_setting(line: &str) -> bool {
    let line = line.strip_prefix('#').unwrap_or(line);
    let line = line.strip_prefix(' ').unwrap_or(line);
    line.split_once(" = ").is_some_and(|(name, _)| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    })
}

fn shared_names(files: &BTreeMap<String, Source>) -> usize {
    let mut types: BTreeMap<String, usize> = BTreeMap::new();
    for source in files.values() {
        for keyword in ["struct", "enum", "trait"] {
            for at in source::words(&source.shipped, keyword) {
                let rest = source.shipped[at + keyword.len()..].trim_start();
                let name: String = rest
                    .chars()
                    .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                    .collect();
                *types.entry(name).or_default() += 1;
            }
        }
    }
    types.values().filter(|count| **count >= 3).count()
}

type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the imports between the files below `base`; what a folder's own file exports again counts as that
/// of the file it comes from.
fn imports(files: &BTreeMap<String, Source>, base: &str) -> Imports {
    let own: BTreeMap<&str, &Source> = files
        .iter()
        .filter_map(|(path, source)| Some((path.strip_prefix(base)?, source)))
        .filter(|(path, _)| *path != "main.rs")
        .collect();
    let modules: BTreeMap<Vec<String>, &str> =
        own.keys().map(|path| (module(path), *path)).collect();
    let absolute = |at: &[String], path: &str| -> Option<Vec<String>> {
        let segments: Vec<String> = path.split("::").map(str::to_owned).collect();
        let supers = segments.iter().take_while(|own| *own == "super").count();
        match segments[0].as_str() {
            "crate" => Some(segments[1..].to_vec()),
            "super" => Some([&at[..at.len().checked_sub(supers)?], &segments[supers..]].concat()),
            "self" => Some([at, &segments[1..]].concat()),
            first => {
                let below = [at, &[first.to_owned()]].concat();
                modules.contains_key(&below).then(|| [at, &segments].concat())
            }
        }
    };
    let mut exports: BTreeMap<(Vec<String>, String), Vec<String>> = BTreeMap::new();
    for (path, source) in &own {
        let at = module(path);
        for named in source::paths(&source.shipped).iter().filter(|named| named.imported) {
            if let Some(full) = absolute(&at, &named.path) {
                let name = full.last().cloned().unwrap_or_default();
                exports.insert((at.clone(), name), full);
            }
        }
    }
    let mut found = Imports::new();
    for (path, source) in &own {
        let at = module(path);
        let targets = found.entry((*path).to_owned()).or_default();
        for named in source::paths(&source.shipped) {
            if named.imported && is_exported(source, named.line) && path.ends_with("mod.rs") {
                continue;
            }
            let target =
                absolute(&at, &named.path).and_then(|full| resolved(&full, &modules, &exports, 0));
            targets.extend(target.filter(|target| target != path).map(str::to_owned));
        }
    }
    found
}

/// Whether the import in a line is exported again.
fn is_exported(source: &Source, line: usize) -> bool {
    source.shipped.lines().nth(line - 1).is_some_and(|line| line.trim_start().starts_with("pub"))
}

/// Returns the file of an item.
fn resolved<'a>(
    full: &[String],
    modules: &BTreeMap<Vec<String>, &'a str>,
    exports: &BTreeMap<(Vec<String>, String), Vec<String>>,
    depth: usize,
) -> Option<&'a str> {
    let length = (0..=full.len()).rev().find(|length| modules.contains_key(&full[..*length]))?;
    let file = modules[&full[..length]];
    let next = full.get(length).filter(|_| depth < 6);
    let further = next.and_then(|name| exports.get(&(full[..length].to_vec(), name.clone())));
    let further = further.filter(|own| own.as_slice() != &full[..=length]).map(|own| {
        let own = [own.as_slice(), &full[length + 1..]].concat();
        resolved(&own, modules, exports, depth + 1)
    });
    further.flatten().or(Some(file))
}

/// Returns the path of a file's module.
fn module(path: &str) -> Vec<String> {
    let mut segments: Vec<String> =
        path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if segments.last().is_some_and(|last| last == "mod" || last == "lib") {
        segments.pop();
    }
    segments
}

/// Returns the files of the largest circle: all that reach one another.
fn largest_circle(imports: &Imports) -> Vec<String> {
    let reaches = |from: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            for next in imports.get(file).into_iter().flatten() {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|file| (file.as_str(), reaches(file))).collect();
    let circles = all.iter().map(|(file, reached)| {
        let own =
            reached.iter().filter(|other| all.get(*other).is_some_and(|back| back.contains(file)));
        own.map(|file| (*file).to_owned()).collect::<Vec<String>>()
    });
    circles.max_by_key(Vec::len).unwrap_or_default()
}
