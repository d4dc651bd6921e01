//! Note next to a kept user message after a compaction. It contains the number of removed messages
//! or an extract of them, the files in use, and the policy's own notices.

use super::note_summary::NoteSummary;
use super::{Compaction, Step};
use crate::compact::message::extract;
use crate::compact::policy::{FileHints, Notes, share};
use crate::compact::source::Source;
use crate::compact::state::history::SummaryUse;
use crate::compact::state::note::{NOTES_PER_MESSAGE, Note, Place};
use crate::compact::state::turns::TurnKind;
use crate::compact::summary::Summary;

/// Maximum size of the separator between a note and the text next to it.
const SEAM_TOKENS: u64 = 4;
/// Prefix of the lines of an extract.
const LINE: &str = "- ";
/// Separator between a summary and the extract of messages that it does not cover.
const LATER: &str = "\n[weir: after that]";

impl Compaction<'_> {
    /// Leaves a note if turns were removed or masked. It follows the text of the last kept user
    /// message before them, or else precedes the text of the next one.
    pub(crate) fn leave_note(&mut self, step: Step, source: &dyn Source) {
        let left_out = self.left_out + self.state.notes.unmentioned;
        self.state.notes.unmentioned = left_out;
        let notice = self.notice(step);
        let policy = &self.state.profile.policy;
        let counts = policy.notes != Notes::Nothing && left_out > 0;
        let hints = policy.notes != Notes::Nothing && policy.shares.file_hints != FileHints::Off;
        let newest = self.turn(self.newest).first;
        let gap = self.gap.or(notice.is_some().then_some(newest));
        let Some(gap) = gap.filter(|_| counts || notice.is_some() || hints) else { return };
        let Some((message, place)) = self.note_place(gap) else { return };
        let more = [self.file_hints(source), notice.unwrap_or_default()];
        let more: Vec<String> = more.into_iter().filter(|text| !text.is_empty()).collect();
        let counted = if counts { left_out } else { 0 };
        let texts = self.texts(counted, &more, source);
        if !texts.is_empty() {
            self.merge_notes_of(message);
        }
        for (text, summary) in texts {
            let has_summary = summary.is_some();
            if self.place_note(message, place, counted, text, summary) {
                if counts {
                    self.state.notes.unmentioned = 0;
                    self.state.notes.unexcerpted.clear();
                }
                return;
            }
            if has_summary {
                self.state.history.summary = SummaryUse::Unfit;
            }
        }
    }

    /// Returns candidate texts of the note, each with its summary, with less and less besides the
    /// count.
    fn texts(
        &mut self,
        left_out: usize,
        more: &[String],
        source: &dyn Source,
    ) -> Vec<(Option<String>, Option<Summary>)> {
        let span = self.span();
        let asks = left_out > 0 && !span.is_empty();
        let room_tokens = 2 * self.extract_tokens();
        let fitted =
            asks.then(|| self.note_summary(&span, left_out, room_tokens, source)).flatten();
        let lines = self.lines(&span, left_out, source);
        let mut kinds: Vec<(Option<&NoteSummary>, &[String])> = Vec::new();
        if fitted.is_some() {
            kinds.extend([(fitted.as_ref(), more), (fitted.as_ref(), &[])]);
        }
        kinds.extend([(None, more), (None, &[])]);
        kinds.retain(|(_, more)| left_out > 0 || !more.is_empty());
        let text = |(fitted, more): (Option<&NoteSummary>, &[String])| {
            let summary = fitted.map(|fitted| fitted.summary.clone());
            (self.compose(fitted, left_out, &lines, more), summary)
        };
        kinds.into_iter().map(text).collect()
    }

    /// Returns the policy's notice to the model after this step.
    fn notice(&self, step: Step) -> Option<String> {
        let notices = &self.state.profile.policy.zones.notices;
        let own = match step {
            Step::Mask => &notices.mask,
            Step::WindDown => &notices.wind_down,
            Step::Restart => &notices.restart,
            Step::Evict => &None,
        };
        own.as_deref().map(str::to_owned)
    }

    /// Returns the lines of an extract of `span`, each with its index there.
    fn lines(&self, span: &[usize], left_out: usize, source: &dyn Source) -> Vec<(usize, String)> {
        if self.state.profile.policy.notes != Notes::Extract || left_out == 0 {
            return Vec::new();
        }
        let characters = self.state.profile.policy.extract.request_characters;
        let read = |(place, message): (usize, &usize)| {
            let lines = extract::lines(&source.message(*message)?, characters);
            Some(lines.into_iter().map(move |line| (place, line)))
        };
        span.iter().enumerate().filter_map(read).flatten().collect()
    }

    /// Composes the note's text; `None` is the plain count.
    fn compose(
        &self,
        fitted: Option<&NoteSummary>,
        left_out: usize,
        lines: &[(usize, String)],
        more: &[String],
    ) -> Option<String> {
        if self.state.profile.policy.notes == Notes::Extract && left_out > 0 {
            // Messages that a summary covers are not repeated.
            let covers = fitted.map_or(0, |fitted| fitted.summary.covers);
            let after = lines.iter().filter(|(place, _)| *place >= covers);
            let lines: Vec<&str> = after.map(|(_, line)| line.as_str()).collect();
            return Some(self.extract(fitted, left_out, &lines, more));
        }
        if let Some(fitted) = fitted {
            return Some(with_more(fitted, more));
        }
        if more.is_empty() {
            return None;
        }
        let mut sentences = Vec::new();
        if left_out > 0 {
            sentences.push(format!("{} left out here to fit the context window", were(left_out)));
        }
        sentences.extend_from_slice(more);
        Some(format!("[weir: {}]", sentences.join(". ")))
    }

    /// Returns the room for an extract, or for a summary with an extract. Early ones leave room for
    /// later ones, and later ones always have some room.
    pub(crate) fn extract_tokens(&self) -> u64 {
        let policy = &self.state.profile.policy;
        let all_tokens = share(self.state.goal_tokens(), policy.extract.permille);
        let taken_tokens: u64 = self.state.notes.tokens();
        (all_tokens.saturating_sub(taken_tokens) / 2).max(all_tokens / 8)
    }

    /// Returns an extract of the newest `lines` that fit, behind a summary if there is one.
    fn extract(
        &self,
        fitted: Option<&NoteSummary>,
        left_out: usize,
        lines: &[&str],
        more: &[String],
    ) -> String {
        let encoding = self.state.profile.measure.encoding;
        let mut left = self.extract_tokens();
        if let Some(fitted) = fitted {
            left = left.saturating_sub(fitted.tokens);
        }
        let mut from = lines.len();
        while from > 0 {
            let tokens = encoding.count(lines[from - 1]) + 1;
            if tokens > left {
                break;
            }
            left -= tokens;
            from -= 1;
        }
        let mut text = match fitted {
            Some(fitted) => with_more(fitted, more),
            None => {
                let noun = if left_out == 1 { "message" } else { "messages" };
                let own = format!("summary of {left_out} earlier {noun}");
                let sentences: Vec<&str> =
                    std::iter::once(&own).chain(more).map(String::as_str).collect();
                format!("[weir: {}]", sentences.join(". "))
            }
        };
        if fitted.is_some() && from < lines.len() {
            text.push_str(LATER);
        }
        for line in &lines[from..] {
            text.push('\n');
            text.push_str(line);
        }
        text
    }

    /// Places a note at `message` if the limit has room for it.
    fn place_note(
        &mut self,
        message: usize,
        place: Place,
        left_out: usize,
        text: Option<String>,
        summary: Option<Summary>,
    ) -> bool {
        let note = Note { summary, ..self.note(message, place, left_out, text) };
        let fits = self.state.sizes.request_tokens + note.tokens <= self.state.profile.limit_tokens;
        if fits {
            self.state.sizes.request_tokens += note.tokens;
            self.state.changes.count += 1;
            self.state.notes.list.push(note);
        }
        fits
    }

    fn note(&self, message: usize, place: Place, left_out: usize, text: Option<String>) -> Note {
        let excerpts = text.map(|text| text.into());
        let compaction = self.state.compactions() + 1;
        let mut note =
            Note { message, place, compaction, left_out, tokens: 0, excerpts, summary: None };
        note.tokens = self.state.profile.measure.encoding.count(&note.text()) + SEAM_TOKENS;
        note
    }

    fn note_place(&self, gap: usize) -> Option<(usize, Place)> {
        let places = |turn: &&usize| {
            let own = self.turn(**turn);
            own.kind == TurnKind::User && self.state.messages.facts[own.first].takes_note
        };
        let after_gap = self.state.turns.live.partition_point(|turn| self.turn(*turn).first < gap);
        let (before, after) = self.state.turns.live.split_at(after_gap);
        let first_of = |turn: &usize| self.turn(*turn).first;
        let before = before.iter().rev().find(places).map(|turn| (first_of(turn), Place::After));
        // The caller's current message is sent unchanged.
        let is_last = |turn: &usize| self.turn(*turn).last + 1 == self.state.messages.facts.len();
        let after = || after.iter().find(|turn| places(turn) && !is_last(turn));
        before.or_else(|| after().map(|turn| (first_of(turn), Place::Before)))
    }

    /// Merges the two oldest notes of a message, so that it does not gather notes without bound.
    /// Their file lists and notices are outdated by then, and are dropped. Excerpts stay: the
    /// compactions that write them bound them.
    fn merge_notes_of(&mut self, message: usize) {
        let are_excerpts = self.state.profile.policy.notes == Notes::Excerpts;
        let stays = |note: &Note| are_excerpts && note.excerpts.is_some() && note.left_out > 0;
        let own: Vec<usize> = (0..self.state.notes.list.len())
            .filter(|index| self.state.notes.list[*index].message == message)
            .filter(|index| !stays(&self.state.notes.list[*index]))
            .collect();
        if own.len() < NOTES_PER_MESSAGE {
            return;
        }
        let second = self.state.notes.list.remove(own[1]);
        let first = self.state.notes.list.remove(own[0]);
        self.state.sizes.request_tokens -= first.tokens + second.tokens;
        self.state.changes.count += 1;
        let left_out = first.left_out + second.left_out;
        let lines: Vec<&str> = [&first, &second]
            .into_iter()
            .flat_map(|note| extracted(note).lines().filter(|line| line.starts_with(LINE)))
            .collect();
        if left_out == 0 {
            return;
        }
        let fitted = self.merged_summaries([&first, &second], 2 * self.extract_tokens());
        let text = match self.state.profile.policy.notes {
            Notes::Extract => Some(self.extract(fitted.as_ref(), left_out, &lines, &[])),
            _ => fitted.as_ref().map(|fitted| with_more(fitted, &[])),
        };
        let merged = self.note(message, first.place, left_out, text);
        let summary = fitted.map(|fitted| fitted.summary);
        let merged = Note { compaction: second.compaction, summary, ..merged };
        self.state.sizes.request_tokens += merged.tokens;
        self.state.notes.list.insert(own[0], merged);
    }

    /// Returns the files that calls touched, the latest first, in the policy's wording; empty
    /// without any.
    fn file_hints(&self, source: &dyn Source) -> String {
        let (most, before, after) = match self.state.profile.policy.shares.file_hints {
            FileHints::Off => return String::new(),
            FileHints::Minimal => (5, "Files: ", ""),
            FileHints::Normal => (10, "Files used before, the last one first: ", ""),
            FileHints::Full => (
                20,
                "Files used before, the last one first: ",
                ". What they held may have gone from this conversation: read them again where it \
                 matters",
            ),
        };
        let mut paths: Vec<String> = Vec::new();
        for message in (0..self.state.messages.facts.len()).rev() {
            if paths.len() >= most {
                break;
            }
            if self.state.messages.facts[message].calls == 0 {
                continue;
            }
            let Some(own) = source.message(message) else { continue };
            for path in extract::paths(&own).into_iter().rev() {
                if paths.len() < most && !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
        if paths.is_empty() {
            String::new()
        } else {
            format!("{before}{}{after}", paths.join(", "))
        }
    }
}

/// Joins a summary and further sentences.
fn with_more(fitted: &NoteSummary, more: &[String]) -> String {
    match more {
        [] => fitted.block.clone(),
        more => format!("{}\n[weir: {}]", fitted.block, more.join(". ")),
    }
}

/// Returns the extract in a note. No line of a summary can look like the separator.
fn extracted(note: &Note) -> &str {
    let text = note.excerpts.as_deref().unwrap_or_default();
    match &note.summary {
        None => text,
        Some(_) => text.split_once(LATER).map_or("", |(_, later)| later),
    }
}

/// Returns a number of messages as the subject of a sentence.
fn were(messages: usize) -> String {
    let noun = if messages == 1 { "message was" } else { "messages were" };
    format!("{messages} earlier {noun}")
}
