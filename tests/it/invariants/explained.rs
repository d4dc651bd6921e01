//! Reports agree with the sent requests: for random requests, the explained plan is the actual
//! plan, its rows are the sent messages, and its numbers add up.

use weir::proxy::{ErrorKind, Question};
use weir_engine::compact::Fate;
use weir_engine::compact::reasons::Reason;
use weir_engine::compact::report::{Report, Section};

use super::generate::{self, Case};
use super::harness::{Weir, check};
use super::judge::{Body, compare};
use super::presets;

fn is_explained(case: &Case) -> Result<(), String> {
    is_explained_by([Weir::new(), Weir::new()], case, rows_are_sent)
}

/// Whether two weirs with the same configuration explain and plan a request alike.
fn is_explained_by(
    [weir, anew]: [Weir; 2],
    case: &Case,
    rows_are_sent: fn(&str, &str, &Report) -> Result<(), String>,
) -> Result<(), String> {
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    // Neither has seen the conversation before, and one has: remembered state changes nothing.
    let planned = anew.plan(&body, limit);
    let explained = match weir.explain(&body, limit, Question::default()) {
        Ok(explained) => explained,
        Err(error) => {
            let expected = planned.err().map(|error| error.message);
            let is_same = expected.as_deref() == Some(&*error.message);
            return if is_same { Ok(()) } else { Err(format!("{error:?}, not {expected:?}")) };
        }
    };
    let report = &explained.report;
    adds_up(report)?;
    let planned = match planned {
        Ok(planned) => planned,
        Err(error) => {
            let is_told = error.kind == ErrorKind::ContextLengthExceeded
                && report.refusal.as_deref() == Some(&*error.message)
                && report.action == "refuse"
                && explained.body.is_none();
            return if is_told { Ok(()) } else { Err(format!("{error:?} is not told")) };
        }
    };
    let sent = planned.body.as_deref().unwrap_or(body.as_bytes());
    if explained.body.as_deref() != Some(sent) {
        return Err("another body is told than sent".to_owned());
    }
    if weir.plan(&body, limit).ok().as_ref() != Some(&planned) {
        return Err("explaining changed the plan".to_owned());
    }
    let window = &report.window;
    let told = (&report.action, window.received_tokens, window.sent_tokens, window.limit_tokens);
    let made =
        (&planned.action, planned.received_tokens, planned.sent_tokens, planned.limit_tokens);
    if told != made || report.compaction.compactions != planned.compactions {
        return Err(format!("{told:?} is told of {made:?}"));
    }
    rows_are_sent(&body, std::str::from_utf8(sent).expect("it was text"), report)
}

/// Checks that the parts of a report add up to its totals.
fn adds_up(report: &Report) -> Result<(), String> {
    let window = &report.window;
    let notes: u64 = report.notes.iter().map(|row| row.sent_tokens).sum();
    let messages = |of: fn(&weir_engine::compact::report::MessageRow) -> u64| -> u64 {
        report.messages.iter().map(of).sum()
    };
    let received = messages(|row| row.received_tokens);
    let sent = messages(|row| row.sent_tokens);
    let sections = |of: fn(&weir_engine::compact::report::SectionRow) -> u64| {
        report.sections.iter().map(of).sum()
    };
    let roles =
        |of: fn(&weir_engine::compact::report::RoleRow) -> u64| report.roles.iter().map(of).sum();
    let overhead = window.overhead_tokens;
    for (what, parts, whole) in [
        ("received", overhead + received, window.received_tokens),
        ("sent", overhead + sent + notes, window.sent_tokens),
        ("sections received", sections(|row| row.received_tokens), window.received_tokens),
        ("sections sent", sections(|row| row.sent_tokens), window.sent_tokens),
        ("roles received", roles(|row| row.received_tokens), received),
        ("roles sent", roles(|row| row.sent_tokens), sent),
    ] {
        if parts != whole {
            return Err(format!("{what}: {parts} of {whole}"));
        }
    }
    let section = |own| report.sections.iter().find(|row| row.section == own);
    if section(Section::Notes).map(|row| row.sent_tokens) != Some(notes) {
        return Err("the notes' section is not the notes".to_owned());
    }
    for row in &report.messages {
        let by_compaction = row.fate != Fate::Kept;
        let on_arrival = matches!(row.why.reason, Reason::Oversized | Reason::Unpaired);
        let by_compaction = by_compaction && !on_arrival;
        if by_compaction != row.why.compaction.is_some()
            || by_compaction != row.why.at_messages.is_some()
        {
            return Err(format!("{row:?}"));
        }
        if row.why.note.is_some_and(|note| note > report.notes.len()) {
            return Err(format!("{row:?} of {} notes", report.notes.len()));
        }
    }
    Ok(())
}

/// Checks that the messages that a report lists as sent are the sent ones.
fn rows_are_sent(received: &str, sent: &str, report: &Report) -> Result<(), String> {
    let (received, sent) = (Body::read(received)?, Body::read(sent)?);
    let verdict = compare(&received, &sent)?;
    let kept: Vec<usize> = verdict.kept.iter().map(|(own, _)| *own).collect();
    let clipped = verdict.kept.iter().filter(|(_, change)| change.clipped);
    let clipped: Vec<usize> = clipped.map(|(own, _)| *own).collect();
    let with = |fates: &[Fate]| -> Vec<usize> {
        let rows = report.messages.iter().filter(|row| fates.contains(&row.fate));
        rows.map(|row| row.index).collect()
    };
    // Of byte-identical messages, it is unknown which one stayed.
    let raws = |own: &[usize]| own.iter().map(|own| received.raw(*own)).collect::<Vec<_>>();
    if raws(&with(&[Fate::Kept, Fate::Clipped])) != raws(&kept) {
        return Err(format!("{kept:?} are sent, told is {:?}", report.messages));
    }
    if raws(&with(&[Fate::Clipped])) != raws(&clipped) {
        return Err(format!("{clipped:?} are clipped, told is {:?}", report.messages));
    }
    Ok(())
}

/// Checks that the number of sent messages equals the report's. Tests that know the policies check
/// which ones changed.
fn as_many_are_sent(_: &str, sent: &str, report: &Report) -> Result<(), String> {
    let sent = Body::read(sent)?.messages().len();
    let kept = report.messages.iter().filter(|row| row.fate != Fate::Gone).count();
    let notes = report.notes.iter().filter(|row| row.place.starts_with("a message")).count();
    if sent != kept + notes {
        return Err(format!("{sent} are sent, told are {kept} and {notes} notes"));
    }
    Ok(())
}

#[test]
fn what_is_told_is_what_is_sent_under_every_policy() {
    let policies = presets::policies();
    let cases = (0..policies.len(), generate::valid());
    check("explained, policies", 100, &cases, |(place, case)| {
        let (name, policy) = &policies[*place];
        let weirs = [presets::weir(policy), presets::weir(policy)];
        let explained = is_explained_by(weirs, case, as_many_are_sent);
        explained.map_err(|error| format!("{name}: {error}"))
    });
}

#[test]
fn what_is_told_of_dialogues_is_what_is_sent() {
    check("explained, dialogues", 40, &generate::dialogues(), is_explained);
}

#[test]
fn what_is_told_is_what_is_sent() {
    check("explained, valid", 60, &generate::valid(), is_explained);
}

#[test]
fn what_is_told_of_hostile_requests_is_what_is_sent() {
    check("explained, hostile", 80, &generate::hostile(), is_explained);
}
