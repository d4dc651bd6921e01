//! `weir verify`: checks receipts against a transcript, or a body as sent against the body as received.
//! Prints the problems that `weir_engine::compact::receipt` finds.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;

use super::explain::{self, read, with_profile};
use super::keys::{self, Given};
use crate::proxy::plan::with_messages;
use weir_engine::compact::receipt::{Checked, Problem, Receipt, check};
use weir_engine::compact::report::shown::safe_lines;
use weir_engine::wire::Protocol;

/// Maximum size of a file.
const MAX_BYTES: usize = 256 << 20;
/// Maximum number of messages in a transcript.
const MAX_MESSAGES: usize = 1 << 20;
/// Exit code if nothing was checked: a file cannot be read.
const UNREADABLE: u8 = 2;

const HELP: &str = "\
Examples:
  weir explain request.json --receipt > receipt.json
  weir verify request.json receipt.json
  weir verify request.json receipts/*.json --json
  weir verify --request received.json --sent sent.json

The transcript is the body of a request, or only its messages or items; it may go on after the \
messages of a receipt. A receipt is a file of `weir explain --receipt`, or the answer of the plan API \
with a receipt.

weir checks the digest of each message; each excerpt, word for word; that no note has lines of its own; \
that the last message was sent, and no message that is neither received nor a note; and the rules in \
messages that were not sent whole. Each such rule must be in an excerpt, or the receipt must list it as \
lost. With --request and --sent, weir makes the receipt from the two bodies, and also shows the lines of \
notes that are in no message. The client does not have the profile text that weir adds: --config or \
--profile-file names it.

Exit codes: 0 the files agree, 1 a problem was found (with --strict also a lost rule), 2 nothing was \
checked, because a file cannot be read or an option is wrong.";

/// Checks receipts of compactions against a transcript
#[derive(Debug, clap::Args)]
#[command(after_help = HELP, after_long_help = HELP)]
pub(super) struct VerifyArgs {
    /// The body of a request, or only its messages or items, as JSON; - for standard input
    #[arg(
        value_name = "TRANSCRIPT",
        required_unless_present = "request",
        conflicts_with = "request"
    )]
    transcript: Option<PathBuf>,
    /// Receipts
    #[arg(value_name = "RECEIPT", required_unless_present = "request", conflicts_with = "request")]
    receipts: Vec<PathBuf>,
    /// A body as received, to compare with --sent
    #[arg(long, value_name = "FILE", requires = "sent")]
    request: Option<PathBuf>,
    /// The body that was sent for it
    #[arg(long, value_name = "FILE", requires = "request")]
    sent: Option<PathBuf>,
    /// The protocol of the bodies [default: recognised by their shape]
    #[arg(long, value_name = "NAME", value_parser = super::protocol())]
    protocol: Option<Protocol>,
    /// The configuration with the profile text (context.profile) of the requests
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
    /// The profile text of the virtual key that sent the requests
    #[arg(long, value_name = "FILE", value_parser = keys::profile)]
    profile_file: Option<Given<String>>,
    /// Reports each lost rule as a problem, even if the receipt lists it
    #[arg(long)]
    strict: bool,
    /// Prints one JSON object a receipt, each on its line
    #[arg(long)]
    json: bool,
}

/// Result for one receipt.
#[derive(Debug, Serialize)]
struct ReceiptOutcome {
    /// File of the receipt, or of the body sent.
    file: String,
    #[serde(flatten)]
    checked: Checked,
    /// Lines of notes that are in no message.
    unknown_lines: Vec<String>,
    /// Messages sent that are neither received ones nor notes, by index among those sent.
    added: Vec<usize>,
    ok: bool,
}

/// Runs `weir verify …`.
pub(super) fn run(args: &VerifyArgs) -> ExitCode {
    let outcomes = match (&args.transcript, &args.request, &args.sent) {
        (_, Some(request), Some(sent)) => sent_for(args, request, sent).map(|one| vec![one]),
        (Some(transcript), ..) => against(args, transcript),
        _ => Err("name a transcript and receipts, or --request and --sent".to_owned()),
    };
    let shown = outcomes.and_then(|outcomes| {
        let shown: String = outcomes.iter().map(|outcome| shown(args, outcome)).collect();
        super::print(&shown).map(|()| outcomes.iter().all(|outcome| outcome.ok))
    });
    match shown {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("weir: {message}");
            ExitCode::from(UNREADABLE)
        }
    }
}

/// Checks receipts against a transcript.
fn against(args: &VerifyArgs, transcript: &Path) -> Result<Vec<ReceiptOutcome>, String> {
    let (bodies, protocol) = received(args, transcript)?;
    let bodies = bodies.iter().map(|body| messages(body, protocol, transcript));
    let bodies: Vec<Vec<&str>> = bodies.collect::<Result<_, _>>()?;
    let count = bodies.last().map_or(0, Vec::len);
    let receipts = args.receipts.iter();
    let checked = receipts.map(|path| {
        let receipt = receipt(path)?;
        let checked = bodies.iter().map(|messages| {
            let mut checked = check(&receipt, protocol, messages);
            // A profile text may be a message of its own.
            for problem in checked.problems.iter_mut().chain(&mut checked.admitted) {
                let number = problem.message;
                problem.message = number.map(|own| own.saturating_sub(messages.len() - count));
            }
            checked
        });
        let checked = checked.min_by_key(|own| own.problems.len()).unwrap_or_default();
        Ok(outcome(args, path, checked, Vec::new(), receipt.added))
    });
    checked.collect()
}

/// Makes the receipt of a body as sent, and checks it.
fn sent_for(args: &VerifyArgs, request: &Path, sent: &Path) -> Result<ReceiptOutcome, String> {
    let (bodies, protocol) = received(args, request)?;
    let (sent_body, _) = body(args, sent)?;
    let sent_messages = messages(&sent_body, protocol, sent)?;
    let mut outcomes = Vec::new();
    for body in &bodies {
        let received = messages(body, protocol, request)?;
        let (receipt, unknown_lines) =
            Receipt::with_unknown_lines(protocol, &received, &sent_messages);
        let checked = check(&receipt, protocol, &received);
        outcomes.push(outcome(args, sent, checked, unknown_lines, receipt.added));
    }
    let problems = |own: &ReceiptOutcome| own.checked.problems.len() + own.added.len();
    outcomes.into_iter().min_by_key(problems).ok_or_else(|| "nothing was received".to_owned())
}

/// Reads a body as received: with the profile text, if there is one, and as it is, as if bypassed.
fn received(args: &VerifyArgs, path: &Path) -> Result<(Vec<Vec<u8>>, Protocol), String> {
    let (body, protocol) = body(args, path)?;
    let profile = match (&args.profile_file, &args.config) {
        (Some(Some(own)), _) => Some(own.clone()),
        (_, Some(config)) => explain::profile(&explain::configuration(Some(config))?),
        _ => None,
    };
    let added = profile.and_then(|text| with_profile(protocol, &body, &text));
    Ok((added.map(Vec::from).into_iter().chain([body]).collect(), protocol))
}

fn outcome(
    args: &VerifyArgs,
    path: &Path,
    mut checked: Checked,
    unknown_lines: Vec<String>,
    added: Vec<usize>,
) -> ReceiptOutcome {
    if args.strict {
        checked.problems.append(&mut checked.admitted);
    }
    let ok = checked.problems.is_empty() && added.is_empty();
    ReceiptOutcome { file: path.display().to_string(), checked, unknown_lines, added, ok }
}

/// Reads a body, completed from a bare list, and recognises its protocol.
fn body(args: &VerifyArgs, path: &Path) -> Result<(Vec<u8>, Protocol), String> {
    let bytes = read(path, MAX_BYTES)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| format!("{}: it is not UTF-8 text", path.display()))?;
    let protocol = args.protocol.unwrap_or_else(|| Protocol::recognise(text));
    Ok((with_messages(protocol, bytes.into()).to_vec(), protocol))
}

fn messages<'a>(body: &'a [u8], protocol: Protocol, path: &Path) -> Result<Vec<&'a str>, String> {
    let unreadable =
        || format!("{}: it is no body of the protocol \"{}\"", path.display(), protocol.name());
    Ok(protocol.read(body, MAX_MESSAGES).map_err(|_| unreadable())?.messages)
}

/// Reads a receipt: alone, or as the member `receipt` of a plan.
fn receipt(path: &Path) -> Result<Receipt, String> {
    let shown = path.display();
    let bytes = read(path, MAX_BYTES)?;
    let mut value: Value =
        serde_json::from_slice(&bytes).map_err(|error| format!("{shown}: {error}"))?;
    let own = value.get_mut("receipt").map(Value::take);
    serde_json::from_value(own.unwrap_or(value))
        .map_err(|error| format!("{shown} is no receipt: {error}"))
}

/// Formats the number of messages of each fate. Rare fates are left out if they have none.
fn fates(checked: &Checked) -> String {
    let Checked { kept, masked, clipped, excerpted, excerpts, summarised, gone, .. } = checked;
    let mut parts = vec![format!("{kept} kept")];
    let mut push = |count: &usize, name| {
        if *count > 0 {
            parts.push(format!("{count} {name}"));
        }
    };
    push(masked, "masked");
    push(clipped, "clipped");
    parts.push(format!("{excerpted} excerpted ({excerpts} excerpts)"));
    if *summarised > 0 {
        parts.push(format!("{summarised} summarised"));
    }
    parts.push(format!("{gone} gone"));
    parts.join(", ")
}

/// Formats a result.
fn shown(args: &VerifyArgs, outcome: &ReceiptOutcome) -> String {
    if args.json {
        return serde_json::to_string(outcome).unwrap_or_default() + "\n";
    }
    let checked = &outcome.checked;
    let rules = match (checked.rules, checked.lost_rules) {
        (Some(noted), Some(lost)) => format!("rules {noted} noted, {lost} lost"),
        _ => "rules not checked".to_owned(),
    };
    let mut text = format!(
        "{}: {}; {} messages: {}; {rules}\n",
        outcome.file,
        if outcome.ok { "ok" } else { "problems found" },
        checked.messages,
        fates(checked),
    );
    let continues = |one: &Problem, next: &Problem| {
        one.kind == next.kind
            && one.rule.is_none()
            && next.rule.is_none()
            && one.message.is_some_and(|own| next.message == Some(own + 1))
    };
    for run in checked.problems.chunk_by(continues) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let place = match (first.message, last.message) {
            (Some(first), Some(last)) if first < last => format!("messages {first}-{last}: "),
            (Some(message), _) => format!("message {message}: "),
            (None, _) => String::new(),
        };
        text.push_str(&format!("  {place}{}", first.kind.text()));
        if let Some(rule) = &first.rule {
            text.push_str(&format!(" ({}): {}", rule.digest, safe_lines(&rule.text)));
        }
        text.push('\n');
    }
    for line in &outcome.unknown_lines {
        text.push_str(&format!("  in no message: {}\n", safe_lines(line)));
    }
    for index in &outcome.added {
        text.push_str(&format!("  sent message {index}: it is neither received nor a note\n"));
    }
    text
}
