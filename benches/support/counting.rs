//! Speed of the exact counter as a ratio to `tiktoken-rs`, by kind of text. Both count the same text one
//! after the other, in an order that changes from round to round. Times are CPU time of the thread, so that
//! other work on the machine counts less. Needs Linux.

use std::fs;
use std::path::Path;

use weir_engine::tokens::Encoding;

use crate::recorded;

/// Bytes of each text.
const TEXT_BYTES: usize = 256 << 10;
/// Number of texts of each kind, all different, so that each is counted uncached.
const ROUNDS: usize = 8;
/// The longest row of one sign: `tiktoken-rs` takes more than linear time for longer ones.
const ROW_BYTES: usize = 1000;

/// Prints a table of megabytes a second, first for text that was not counted before, then for the same again.
pub fn run() {
    Encoding::O200kBase.warm();
    let reference = tiktoken_rs::o200k_base_singleton();
    reference.count_ordinary("warm");
    println!("{:<16} {:>26} {:>26}", "o200k_base, MB/s", "first pass", "second pass");
    for (kind, texts) in kinds() {
        let mut passes = [const { Vec::new() }; 2];
        for (round, text) in texts.iter().enumerate() {
            let own = || Encoding::O200kBase.count(text) as usize;
            let theirs = || reference.count_ordinary(text);
            for pass in &mut passes {
                let ((own, counted), (theirs, expected)) = match round % 2 {
                    0 => (timed(own), timed(theirs)),
                    _ => {
                        let theirs = timed(theirs);
                        (timed(own), theirs)
                    }
                };
                assert_eq!(counted, expected, "{kind}");
                pass.push((theirs / own, text.len() as f64 / own / 1e6));
            }
        }
        let [first, second] = passes.map(|pass| {
            let median = |of: fn(&(f64, f64)) -> f64| {
                let mut all: Vec<f64> = pass.iter().map(of).collect();
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            };
            format!("{:.0} = {:.1} × tiktoken-rs", median(|own| own.1), median(|own| own.0))
        });
        println!("{kind:<16} {first:>26} {second:>26}");
    }
}

/// Seconds of CPU time that `work` takes, and its result.
fn timed(work: impl FnOnce() -> usize) -> (f64, usize) {
    let begun = spent_ns();
    let result = work();
    ((spent_ns() - begun) as f64 / 1e9, result)
}

/// Returns the CPU time of this thread so far. The kernel adds the time of a running thread when it
/// yields.
fn spent_ns() -> u64 {
    std::thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux keeps it");
    text.split(' ').next().and_then(|own| own.parse().ok()).expect("a number")
}

fn kinds() -> Vec<(&'static str, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let agent = recorded::conversations().into_iter().flatten();
    let agent = agent.filter_map(|message| message["content"].as_str().map(str::to_owned));
    let json = recorded::conversations().into_iter().flatten().map(|message| message.to_string());
    let row = |sign: &str| format!("{}\n", sign.repeat(ROW_BYTES));
    vec![
        ("agent text", parts(agent.collect())),
        ("English", parts(files(&root.join("docs"), "md"))),
        ("Rust", parts(files(&root.join("src"), "rs"))),
        ("JSON", parts(json.collect())),
        ("Chinese", parts(chinese())),
        ("one letter", parts(vec![row("a")])),
        ("blanks", parts(vec![row(" ")])),
        ("equals signs", parts(vec![row("=")])),
    ]
}

/// Texts of [`TEXT_BYTES`] out of `pieces`, which begin again if there are too few, each time behind another
/// number.
fn parts(pieces: Vec<String>) -> Vec<String> {
    let mut pieces = pieces.iter().cycle().enumerate();
    let mut part = || {
        let mut text = String::new();
        while text.len() < TEXT_BYTES {
            let Some((number, piece)) = pieces.next() else { break };
            text.push_str(&format!("{number}\n{piece}\n"));
        }
        text
    };
    (0..ROUNDS).map(|_| part()).collect()
}

/// The files below a folder with an ending, in order of their names.
fn files(folder: &Path, ending: &str) -> Vec<String> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| match path.is_dir() {
        true => files(path, ending),
        false if path.extension().is_some_and(|own| own == ending) => {
            fs::read_to_string(path).into_iter().collect()
        }
        false => Vec::new(),
    };
    paths.iter().flat_map(read).collect()
}

/// Sentences of common characters, put together at random from a fixed seed.
fn chinese() -> Vec<String> {
    const COMMON: &str = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合还因由其些然前外天政四日那社义事平形相全表间样与关各重新线内数正心反你明看原又么利比或但质气第向道命此变条只没结解问意建月公无系军很情者最立代想已通并提直题党程展五果料象员革位入常文总次品式活设及管特件长求老头基资边流路级少图山统接知较将组见计别她手角期根论运农指几九区强放决西被干做必战先回则任取据处队南给色光门即保治北造百规热领七海口东导器压志世金增争济阶油思术极交受联什认六共权收证改清己美再采转更单风切打白教速花带安场身车例真务具万每目至达走积示议声报斗完类八离华名确才科张信马节话米整空元况今集温传土许步群广石记需段研界拉林律叫且究观越织装影算低持音众书布复容儿须际商非验连断深难近矿千周委素技备半办青省列习响约支般史感劳便团往酸历市克何除消构府称太准精值号率族维划选标写存候毛亲快效斯院查江型眼王按格养易置派层片始却专状育厂京识适属圆包火住调满县局照参红细引听该铁价严";
    let letters: Vec<char> = COMMON.chars().collect();
    let mut state = 20_260_301_u64;
    let mut next = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % most
    };
    let mut sentence = || -> String {
        let length = 8 + next(30);
        let mut text: String = (0..length).map(|_| letters[next(letters.len())]).collect();
        text.push_str(if next(4) == 0 { "，" } else { "。" });
        text
    };
    (0..20_000).map(|_| sentence()).collect()
}
