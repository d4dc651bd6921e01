//! Clipping, the last resort: texts keep head, tail and the lines between that stand out.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;

use super::units::units;
use crate::compact::excerpt::lines::{Asked, outstanding};
use crate::tokens::Encoding;
use crate::wire::json;
use crate::wire::message::arguments_text;
use crate::wire::splice::{Clip, GAP, TextCut, clipped};
use crate::wire::walk::Walk;

/// Sizes, in tokens, that texts are clipped to at least: before recent turns and pins give way, of parallel
/// results before pins do, and of all contents if the request would otherwise be refused.
pub(crate) const LONG_TOKENS: u64 = 1024;
pub(crate) const SHORT_TOKENS: u64 = 256;
pub(crate) const LAST_TOKENS: [u64; 2] = [128, 32];

/// Maximum size of a marker, with numbers of any size.
const MARKER_TOKENS: u64 = 40;
/// Size of the mark of each further gap.
const GAP_TOKENS: f64 = 3.0;

/// Maximum rounds of clipping the strings of a call's arguments again because they were too large, and of
/// choosing lines again because their sizes were misjudged.
const MAX_ROUNDS: usize = 8;
const CHOICES: usize = 5;

/// Bytes of text whose size is counted at once, and shared among its lines.
const PRICED_BYTES: usize = 4096;
/// Share of the room for lines that stand out, with their neighbours.
const OUTSTANDING_SHARE: f64 = 0.34;
/// Lines before and behind one that stands out.
const BEFORE: usize = 1;
const BEHIND: usize = 2;

/// Texts of a message after clipping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clipped {
    /// One entry per text.
    pub cuts: Vec<TextCut>,
    /// Total size of the clipped texts.
    pub text_tokens: u64,
}

impl Clipped {
    /// Returns the only text, clipped.
    fn applied(&self, text: &str) -> String {
        match self.cuts.first() {
            Some(TextCut::Clip(clip)) => clipped(text, clip),
            _ => text.to_owned(),
        }
    }

    /// Estimates its memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let own = |cut: &TextCut| match cut {
            TextCut::Clip(clip) => {
                clip.marker.len() + clip.kept.capacity() * size_of::<Range<usize>>()
            }
            TextCut::Whole | TextCut::Gone => 0,
        };
        size_of::<Self>()
            + self.cuts.capacity() * size_of::<TextCut>()
            + self.cuts.iter().map(own).sum::<usize>()
    }
}

/// Lines of a message's texts, each with its size. Made once, however often they are clipped.
pub(crate) struct Lines<'a> {
    encoding: Encoding,
    texts: Vec<Cow<'a, str>>,
    /// Size of each text, counted whole at the first use.
    sizes: Vec<OnceCell<u64>>,
    /// Size of all texts, as the sum of their parts'.
    parts_tokens: u64,
    lines: Vec<Line>,
    /// Lines that stand out, the best first.
    outstanding: Vec<usize>,
}

/// Line, sentence or record of a text.
struct Line {
    text: usize,
    span: Range<usize>,
    /// Estimated size with what follows up to the next line.
    tokens: f64,
}

/// Returns a line without the sequences that colour it in a terminal, whose letters would join its words.
fn uncoloured(line: &str) -> Cow<'_, str> {
    const BEGINNING: &str = "\u{1b}[";
    if !line.contains(BEGINNING) {
        return Cow::Borrowed(line);
    }
    let mut parts = line.split(BEGINNING);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter| ('@'..='~').contains(&letter));
        plain.push_str(end.map_or("", |end| &part[end + 1..]));
    }
    Cow::Owned(plain)
}

impl<'a> Lines<'a> {
    /// Splits `texts`, which answer what is `asked`, into lines.
    pub(crate) fn of(encoding: Encoding, texts: Vec<Cow<'a, str>>, asked: &Asked) -> Self {
        let (mut sizes, mut parts_tokens, mut lines) = (Vec::new(), 0, Vec::new());
        for (text, said) in texts.iter().enumerate() {
            let (tokens, is_whole) = price(encoding, said, text, units(said), &mut lines);
            parts_tokens += tokens;
            sizes.push(if is_whole { OnceCell::from(tokens) } else { OnceCell::new() });
        }
        let said: Vec<Cow<'_, str>> = lines
            .iter()
            .map(|line: &Line| uncoloured(&texts[line.text][line.span.clone()]))
            .collect();
        let said: Vec<&str> = said.iter().map(AsRef::as_ref).collect();
        let outstanding = outstanding(&said, asked);
        Self { encoding, texts, sizes, parts_tokens, lines, outstanding }
    }

    /// Returns the size of a text.
    fn size(&self, text: usize) -> u64 {
        *self.sizes[text].get_or_init(|| self.encoding.count(&self.texts[text]))
    }

    /// Returns the number of lines, which its memory depends on.
    pub(crate) fn count(&self) -> usize {
        self.lines.len()
    }

    /// Clips the texts to at most `level_tokens` in total, or to a marker if that is more.
    pub(crate) fn clip(&self, level_tokens: u64) -> Clipped {
        // The parts of a text have about as many tokens as the whole, which is counted if it may fit.
        if self.parts_tokens - self.parts_tokens / 8 <= level_tokens {
            let total = (0..self.texts.len()).map(|text| self.size(text)).sum();
            if total <= level_tokens {
                return Clipped {
                    cuts: vec![TextCut::Whole; self.texts.len()],
                    text_tokens: total,
                };
            }
        }
        let mut best = self.cut(&[]);
        let mut room = level_tokens.saturating_sub(MARKER_TOKENS / 2) as f64;
        for _ in 0..CHOICES {
            let next = self.cut(&self.chosen(room));
            let tokens = next.text_tokens;
            let is_within = tokens <= level_tokens;
            if is_within && tokens > best.text_tokens || tokens < best.text_tokens.min(level_tokens)
            {
                best = next;
            }
            if is_within && tokens * 64 >= level_tokens * 63 {
                break;
            }
            // Sizes of lines are estimated: the room is corrected by what they proved to be.
            let share = level_tokens as f64 / tokens.max(1) as f64;
            room *= if is_within { share } else { 0.995 * share };
        }
        best
    }

    /// Chooses pieces of at most `room` tokens as estimated, as spans of texts in order: lines that stand
    /// out with their neighbours, then two thirds of the rest from the front and one from the back.
    fn chosen(&self, room: f64) -> Vec<(usize, Range<usize>)> {
        let mut is_kept = vec![false; self.lines.len()];
        let mut left = room * OUTSTANDING_SHARE;
        for line in &self.outstanding {
            let from = line.saturating_sub(BEFORE);
            let to = (line + BEHIND + 1).min(self.lines.len());
            for near in [*line].into_iter().chain(from..to) {
                let cost = self.lines[near].tokens + if near == *line { GAP_TOKENS } else { 0.0 };
                if !is_kept[near] && cost <= left {
                    is_kept[near] = true;
                    left -= cost;
                }
            }
        }
        let mut left = room - (room * OUTSTANDING_SHARE - left);
        let mut spans: Vec<(usize, Range<usize>)> = Vec::new();
        let tail_share = left / 3.0;
        let tail = self.fill(tail_share, &mut is_kept, true);
        left -= tail_share - tail.left;
        let head = self.fill(left, &mut is_kept, false);
        let parts: Vec<(usize, Range<usize>)> =
            [head.part, tail.part].into_iter().flatten().collect();
        let mut line = 0;
        while line < self.lines.len() {
            for (_, span) in parts.iter().filter(|(own, _)| *own == line) {
                self.join(&mut spans, self.lines[line].text, span.clone());
            }
            if !is_kept[line] {
                line += 1;
                continue;
            }
            let (text, start) = (self.lines[line].text, line);
            while line + 1 < self.lines.len()
                && is_kept[line + 1]
                && self.lines[line + 1].text == text
            {
                line += 1;
            }
            let is_first = start == 0 || self.lines[start - 1].text != text;
            let is_last = line + 1 == self.lines.len() || self.lines[line + 1].text != text;
            let from = if is_first { 0 } else { self.lines[start].span.start };
            let to = if is_last { self.texts[text].len() } else { self.lines[line].span.end };
            self.join(&mut spans, text, from..to);
            line += 1;
        }
        spans
    }

    /// Adds a piece behind the others, to the last one if only white space stands between, or if they
    /// overlap: head and tail may meet in one line.
    fn join(&self, spans: &mut Vec<(usize, Range<usize>)>, text: usize, span: Range<usize>) {
        let said = &self.texts[text];
        match spans.last_mut() {
            Some((own, last))
                if *own == text
                    && said.get(last.end..span.start).unwrap_or_default().trim().is_empty() =>
            {
                last.end = last.end.max(span.end);
            }
            _ => spans.push((text, span)),
        }
    }

    /// Keeps lines from one end as far as there is room, and part of a line that takes most of it.
    fn fill(&self, room: f64, is_kept: &mut [bool], is_tail: bool) -> Filled {
        let mut left = room;
        for nth in 0..self.lines.len() {
            let line = if is_tail { self.lines.len() - 1 - nth } else { nth };
            if is_kept[line] {
                continue;
            }
            let Line { text, span, tokens } = &self.lines[line];
            if *tokens <= left {
                is_kept[line] = true;
                left -= tokens;
                continue;
            }
            if left * 16.0 < room || left < 1.0 {
                return Filled { left, part: None };
            }
            let bytes = (span.len() as f64 * left / tokens) as usize;
            let said = &self.texts[*text];
            let part = match is_tail {
                true => said.ceil_char_boundary(span.end - bytes)..said.len().min(span.end),
                false => span.start..said.floor_char_boundary(span.start + bytes),
            };
            let part = Some((line, part)).filter(|(_, part)| !part.is_empty());
            return Filled { left: 0.0, part };
        }
        Filled { left, part: None }
    }

    /// Cuts the texts down to `kept`, and counts the result.
    fn cut(&self, kept: &[(usize, Range<usize>)]) -> Clipped {
        let whole_bytes: usize = self.texts.iter().map(|text| text.len()).sum();
        let kept_bytes: usize = kept.iter().map(|(_, span)| span.len()).sum();
        let mut cuts = Vec::with_capacity(self.texts.len());
        let mut gaps = 0;
        for (text, said) in self.texts.iter().enumerate() {
            let own = kept[kept.partition_point(|(own, _)| *own < text)..].iter();
            let own: Vec<Range<usize>> =
                own.take_while(|(own, _)| *own == text).map(|(_, span)| span.clone()).collect();
            let is_whole = own.iter().map(Range::len).sum::<usize>() == said.len();
            cuts.push(match is_whole {
                true => TextCut::Whole,
                // The first text that is not whole has the marker.
                false if own.is_empty() && gaps > 0 => TextCut::Gone,
                false => {
                    let ends = [
                        own.first().is_none_or(|own| own.start > 0),
                        own.last().is_some_and(|own| own.end < said.len()),
                    ];
                    gaps += own.len().saturating_sub(1)
                        + ends.into_iter().filter(|is_gap| *is_gap).count();
                    TextCut::Clip(Clip { kept: own, marker: GAP.to_owned() })
                }
            });
        }
        let first = cuts.iter_mut().find_map(|cut| match cut {
            TextCut::Clip(clip) => Some(clip),
            _ => None,
        });
        if let Some(clip) = first {
            clip.marker = marker(whole_bytes - kept_bytes, whole_bytes, gaps > 1);
        }
        let mut text_tokens = 0;
        for (text, cut) in cuts.iter().enumerate() {
            text_tokens += match cut {
                TextCut::Whole => self.size(text),
                TextCut::Clip(clip) => self.encoding.count(&clipped(&self.texts[text], clip)),
                TextCut::Gone => 0,
            };
        }
        Clipped { cuts, text_tokens }
    }
}

/// Room left by lines from one end, and the part of the next line that fills it.
struct Filled {
    left: f64,
    part: Option<(usize, Range<usize>)>,
}

/// Adds the lines of a text with their sizes, as shares of the size of some lines together: the work is
/// linear in every encoding. Returns the sum of these sizes, and whether it is that of the whole text.
fn price(
    encoding: Encoding,
    said: &str,
    text: usize,
    spans: Vec<Range<usize>>,
    lines: &mut Vec<Line>,
) -> (u64, bool) {
    let first = lines.len();
    let ends: Vec<usize> =
        spans.iter().skip(1).map(|span| span.start).chain([said.len()]).collect();
    let (mut from, mut start, mut sum_tokens, mut parts) = (first, 0, 0, 0);
    for (span, end) in spans.into_iter().zip(ends) {
        lines.push(Line { text, span, tokens: 0.0 });
        if end - start < PRICED_BYTES && end < said.len() {
            continue;
        }
        let own_tokens = encoding.count(&said[start..end]);
        sum_tokens += own_tokens;
        parts += 1;
        let tokens = own_tokens as f64;
        let per_byte = tokens / (end - start).max(1) as f64;
        for line in from..lines.len() {
            let next = lines.get(line + 1).map_or(end, |next| next.span.start);
            let own = if line == first { 0 } else { lines[line].span.start };
            lines[line].tokens = next.saturating_sub(own) as f64 * per_byte;
        }
        (from, start) = (lines.len(), end);
    }
    // A blank text has no lines.
    if parts == 0 { (encoding.count(said), true) } else { (sum_tokens, parts == 1) }
}

/// Arguments of a call, given as JSON text. Counted at most once, however often they are clipped: long ones
/// as the sum of their parts.
pub(crate) struct Arguments {
    encoding: Encoding,
    text: String,
    whole_tokens: u64,
    parts: OnceCell<Parts>,
}

/// Texts in arguments that may be clipped.
enum Parts {
    /// Arguments that are no JSON are one text.
    Whole(Lines<'static>),
    /// Strings of JSON arguments: the literals with their sizes, and the lines of those that may be
    /// clipped, by their place among the literals.
    Strings { literals: Vec<Range<usize>>, sizes: Vec<u64>, long: Vec<(usize, Lines<'static>)> },
}

impl Parts {
    fn of(encoding: Encoding, text: &str) -> Self {
        let lines =
            |text: &str| Lines::of(encoding, vec![Cow::Owned(text.to_owned())], &Asked::default());
        let mut walk = Walk::new(text);
        let is_json = walk.value().is_some() && walk.peek().is_none();
        if !is_json {
            return Self::Whole(lines(text));
        }
        let start = text.as_ptr() as usize;
        let (mut literals, mut sizes, mut long) = (Vec::new(), Vec::new(), Vec::new());
        for (nth, raw) in json::value_strings(text).into_iter().enumerate() {
            let at = raw.as_ptr() as usize - start;
            literals.push(at..at + raw.len());
            let said = || json::string(raw).unwrap_or_default();
            if raw.len() <= PRICED_BYTES {
                sizes.push(encoding.count(&raw[1..raw.len() - 1]));
                if sizes[nth] > MARKER_TOKENS {
                    long.push((nth, lines(&said())));
                }
                continue;
            }
            let said = said();
            let own = lines(&said);
            // Escapes take their share.
            sizes.push(own.parts_tokens * (raw.len() as u64 - 2) / said.len().max(1) as u64);
            long.push((nth, own));
        }
        Self::Strings { literals, sizes, long }
    }

    /// Returns the size of the whole text, as the sum of the strings' and of what stands between them.
    fn tokens(&self, encoding: Encoding, text: &str) -> u64 {
        let (literals, sizes) = match self {
            Self::Whole(lines) => return lines.parts_tokens,
            Self::Strings { literals, sizes, .. } => (literals, sizes),
        };
        let (mut rest, mut written) = (String::new(), 0);
        for literal in literals {
            rest.push_str(&text[written..=literal.start]);
            written = literal.end - 1;
        }
        rest.push_str(&text[written..]);
        encoding.count(&rest) + sizes.iter().sum::<u64>()
    }
}

impl Arguments {
    /// Counts `arguments`; `None` if they are neither a string nor an object.
    pub(crate) fn of(encoding: Encoding, arguments: &str) -> Option<Self> {
        let text = String::from(arguments_text(arguments)?);
        if text.len() <= PRICED_BYTES {
            let whole_tokens = encoding.count(&text);
            return Some(Self { encoding, text, whole_tokens, parts: OnceCell::new() });
        }
        let parts = Parts::of(encoding, &text);
        let whole_tokens = parts.tokens(encoding, &text);
        Some(Self { encoding, text, whole_tokens, parts: OnceCell::from(parts) })
    }

    /// Clips them to about `level_tokens`. `None` if they are small enough or would not become shorter.
    ///
    /// JSON arguments stay JSON with the same members: long texts in them are clipped, the longest
    /// first.
    pub(crate) fn clip(&self, level_tokens: u64) -> Option<String> {
        if self.whole_tokens <= level_tokens {
            return None;
        }
        let parts = self.parts.get_or_init(|| Parts::of(self.encoding, &self.text));
        let (literals, sizes, long) = match parts {
            Parts::Strings { literals, sizes, long } => (literals, sizes, long),
            Parts::Whole(lines) => {
                let clip = lines.clip(level_tokens);
                let is_shorter = clip.text_tokens < self.whole_tokens;
                return is_shorter.then(|| clip.applied(&self.text));
            }
        };
        let fixed_tokens = self.whole_tokens.saturating_sub(sizes.iter().sum());
        let mut most_tokens = even_share(sizes, level_tokens.saturating_sub(fixed_tokens));
        let mut best: Option<(u64, String)> = None;
        for _ in 0..MAX_ROUNDS {
            most_tokens = most_tokens.max(MARKER_TOKENS);
            let short = with_short_strings(&self.text, literals, long, most_tokens);
            let tokens = self.encoding.count(&short);
            if best.as_ref().is_none_or(|(least, _)| tokens < *least) {
                best = Some((tokens, short));
            }
            if tokens <= level_tokens || most_tokens == MARKER_TOKENS {
                break;
            }
            // Escapes and split tokens take more than their earlier count.
            most_tokens -= most_tokens / 4;
        }
        best.filter(|(tokens, _)| *tokens < self.whole_tokens).map(|(_, short)| short)
    }
}

/// Returns the size that the largest of `sizes` must shrink to, so that all fit in `room` together.
pub(crate) fn even_share(sizes: &[u64], room: u64) -> u64 {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let mut left = room;
    for (place, size) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - place) as u64;
        if *size > share {
            return share;
        }
        left -= size;
    }
    sorted.last().copied().unwrap_or(0)
}

/// Returns `text` with each string of `literals` clipped that exceeds `most_tokens`. `long` has the lines of
/// those that may.
fn with_short_strings(
    text: &str,
    literals: &[Range<usize>],
    long: &[(usize, Lines<'_>)],
    most_tokens: u64,
) -> String {
    let mut out = String::new();
    let mut written = 0;
    for (nth, lines) in long {
        let (literal, clip) = (&literals[*nth], lines.clip(most_tokens));
        if clip.cuts[..] == [TextCut::Whole] {
            continue;
        }
        out.push_str(&text[written..=literal.start]);
        json::escape_into(&clip.applied(&lines.texts[0]), &mut out);
        written = literal.end - 1;
    }
    out.push_str(&text[written..]);
    out
}

fn marker(left_out_bytes: usize, whole_bytes: usize, has_more: bool) -> String {
    let more = if has_more { " and at each …" } else { "" };
    format!("\n[weir: {left_out_bytes} of {whole_bytes} bytes left out here{more}]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip_arguments(encoding: Encoding, arguments: &str, level_tokens: u64) -> Option<String> {
        Arguments::of(encoding, arguments)?.clip(level_tokens)
    }

    const LADDER_TOKENS: [u64; 6] = [32_768, 16_384, 8_192, 4_096, 2_048, 1_024];

    fn clip_texts<T: AsRef<str>>(encoding: Encoding, texts: &[T], level_tokens: u64) -> Clipped {
        let texts = texts.iter().map(|text| text.as_ref().into()).collect();
        Lines::of(encoding, texts, &Asked::default()).clip(level_tokens)
    }

    #[test]
    fn clipped_texts_stay_within_the_level() {
        let log =
            "2024-05-01 12:00:00 INFO worker-7 handled request id=9f3a in 12ms\n".repeat(2000);
        let one_line = "x".repeat(200_000);
        let han = "测试文本，".repeat(20_000);
        let scaled = Encoding::Scaled { permille: 1200, digits: crate::tokens::Digits::Apart };
        for encoding in [Encoding::O200kBase, Encoding::Cl100kBase, Encoding::Estimate, scaled] {
            for text in [&log, &one_line, &han] {
                for level in LADDER_TOKENS {
                    let clipped = clip_texts(encoding, &[text], level);
                    assert!(clipped.text_tokens <= level, "{encoding:?} {level}");
                    let size = encoding.count(text);
                    assert_eq!(clipped.cuts[0] != TextCut::Whole, size > level);
                    if size > level {
                        assert!(
                            clipped.text_tokens * 100 >= level * 95,
                            "{} of {level}",
                            clipped.text_tokens
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_of_a_line_never_overlap() {
        let (line, blank) = ("xyzzy0Q".repeat(66), " \n \t".repeat(1500));
        for level in 40..400 {
            let clipped = clip_texts(Encoding::O200kBase, &[&line, " 0 1 2 3 4", &blank], level);
            for cut in &clipped.cuts {
                let TextCut::Clip(clip) = cut else { continue };
                assert!(clip.kept.windows(2).all(|two| two[0].end <= two[1].start), "{level}");
            }
        }
    }

    /// Returns the number of bytes left out of `texts`.
    fn left_out(texts: &[String], clipped: &Clipped) -> usize {
        let own = |(text, cut): (&String, &TextCut)| match cut {
            TextCut::Whole => 0,
            TextCut::Clip(clip) => text.len() - clip.kept.iter().map(Range::len).sum::<usize>(),
            TextCut::Gone => text.len(),
        };
        texts.iter().zip(&clipped.cuts).map(own).sum()
    }

    /// Returns the number of bytes that the marker reports as left out.
    fn said_to_be_left_out(clipped: &Clipped) -> usize {
        let marker = clipped.cuts.iter().find_map(|cut| match cut {
            TextCut::Clip(clip) => Some(&clip.marker),
            TextCut::Whole | TextCut::Gone => None,
        });
        let words = marker.map(|marker| marker.split_whitespace().nth(1));
        words.flatten().and_then(|bytes| bytes.parse().ok()).expect("a marker with a number")
    }

    #[test]
    fn several_texts_share_the_level() {
        let many: Vec<String> =
            (0..400).map(|part| format!("part {part} says a few words")).collect();
        let few = vec!["alpha beta ".repeat(3000), "short".into(), "gamma delta ".repeat(1000)];
        let ends = vec!["first".into(), "x y ".repeat(9000), "last".into()];
        for texts in [many, few, ends] {
            let clipped = clip_texts(Encoding::O200kBase, &texts, 1024);
            assert!(clipped.text_tokens <= 1024 && clipped.text_tokens > 800);
            let is_marked =
                |cut: &&TextCut| matches!(cut, TextCut::Clip(clip) if clip.marker != GAP);
            let marked = clipped.cuts.iter().filter(is_marked);
            assert_eq!(marked.count(), 1, "one marker says what is left out");
            assert_eq!(said_to_be_left_out(&clipped), left_out(&texts, &clipped));
        }
        let ends = ["first".to_owned(), "x y ".repeat(9000), "last".to_owned()];
        let clipped = clip_texts(Encoding::O200kBase, &ends, 1024);
        assert_eq!((&clipped.cuts[0], &clipped.cuts[2]), (&TextCut::Whole, &TextCut::Whole));
    }

    #[test]
    fn short_steps_are_kept_to_as_well() {
        let log = "2024-05-01 12:00:00 INFO worker-7 handled request in 12ms\n".repeat(2000);
        for level in [512, SHORT_TOKENS].into_iter().chain(LAST_TOKENS) {
            let clipped = clip_texts(Encoding::O200kBase, &[&log], level);
            assert!(clipped.text_tokens <= level, "{} of {level}", clipped.text_tokens);
        }
    }

    /// Clips the arguments `value`, as they stand in a call, to `level_tokens`.
    fn clipped_arguments(value: &serde_json::Value, level_tokens: u64) -> Option<String> {
        let literal = serde_json::Value::from(value.to_string()).to_string();
        clip_arguments(Encoding::O200kBase, &literal, level_tokens)
    }

    #[test]
    fn clipped_arguments_are_json_with_the_same_members() {
        let long = "def é(\"line\"):\n\treturn {1: '\u{1F980}'}\n".repeat(900);
        let arguments = serde_json::json!({
            "path": "src/a \"b\".rs", "line": 17, "\"key\": ": true, "text": long,
            "edits": [{"old": "x", "new": long}, {"old": "short", "new": ""}], "none": null,
        });
        for level in LADDER_TOKENS.into_iter().chain([512, SHORT_TOKENS]) {
            let Some(short) = clipped_arguments(&arguments, level) else {
                assert!(level > 16_384, "{level}");
                continue;
            };
            let tokens = Encoding::O200kBase.count(&short);
            assert!(tokens <= level && tokens * 2 > level, "{tokens} of {level}");
            let mut read: serde_json::Value = serde_json::from_str(&short).expect("JSON");
            for place in ["/text", "/edits/0/new"] {
                let text = read.pointer_mut(place).expect("it is there");
                let said = text.as_str().expect("a text");
                assert!(said.starts_with("def é(\"line\"") && said.ends_with("'}\n"), "{said}");
                assert!(said.contains("bytes left out here]"), "{said}");
                *text = long.clone().into();
            }
            assert_eq!(read, arguments, "all else is as it was");
        }
        assert_eq!(clipped_arguments(&arguments, 1024), clipped_arguments(&arguments, 1024));
    }

    #[test]
    fn the_longest_texts_of_arguments_are_clipped_first() {
        let (long, short) = ("one two three ".repeat(800), "four five six ".repeat(30));
        let arguments = serde_json::json!({"a": short, "b": long, "c": short});
        let clipped = clipped_arguments(&arguments, 1024).expect("there is something to clip");
        let read: serde_json::Value = serde_json::from_str(&clipped).expect("JSON");
        assert_eq!((&read["a"], &read["c"]), (&arguments["a"], &arguments["c"]));
        assert!(read["b"].as_str().is_some_and(|text| text.len() < long.len() / 2));
    }

    #[test]
    fn other_arguments_are_one_text_and_small_ones_stay() {
        let broken = format!("\"{{\\\"text\\\": \\\"{}\"", "torn off ".repeat(500));
        let clipped = clip_arguments(Encoding::O200kBase, &broken, 256).expect("it is long");
        assert!(clipped.starts_with("{\"text\": \"torn off") && clipped.contains("left out here"));
        assert!(Encoding::O200kBase.count(&clipped) <= 256);
        let numbers = serde_json::json!({"rows": (0..2000).collect::<Vec<_>>()});
        assert_eq!(clipped_arguments(&numbers, 256), None, "there is no text in it");
        for same in ["\"{}\"", "{\"a\": 1}", "", "\"{\\\"a\\\":\\\"b\\\"}\""] {
            assert_eq!(clip_arguments(Encoding::O200kBase, same, 256), None, "{same}");
        }
    }

    /// Lines that stand out stay whole, with their neighbours, and gaps are marked.
    #[test]
    fn a_line_in_the_middle_that_stands_out_stays() {
        let line = |n: u32| {
            format!("12:{:02}:{:02} INFO worker-{} took {} ms", n / 60 % 60, n % 60, n % 7, n % 97)
        };
        let mut lines: Vec<String> = (0..4000).map(line).collect();
        lines[1777] = "12:29:37 ERROR worker-6 lost the lease of shard 12".into();
        let log = lines.join("\n");
        for (texts, level) in [
            (vec![log.as_str()], 256),
            (vec![log.as_str()], 8_192),
            (vec!["first", &log, "last"], 2_048),
            (lines.iter().map(String::as_str).collect(), 2_048),
        ] {
            let short = clip_texts(Encoding::O200kBase, &texts, level);
            assert!(
                short.text_tokens <= level && short.text_tokens * 100 >= level * 95,
                "{}",
                short.text_tokens
            );
            let sent: Vec<String> = texts
                .iter()
                .zip(&short.cuts)
                .filter_map(|(text, cut)| match cut {
                    TextCut::Whole => Some((*text).to_owned()),
                    TextCut::Clip(clip) => Some(clipped(text, clip)),
                    TextCut::Gone => None,
                })
                .collect();
            let sent = sent.join("\n");
            for kept in [0, 1776, 1777, 1778, 1779, 3999] {
                assert!(
                    sent.contains(&format!("{}\n", lines[kept])) || sent.ends_with(&lines[kept]),
                    "{kept} in {level}"
                );
            }
            assert_eq!(short, clip_texts(Encoding::O200kBase, &texts, level));
        }
    }

    #[test]
    fn a_coloured_line_that_stands_out_stays() {
        let line = |colour: u32, word: &str, name: &str| {
            format!("\u{1b}[1m\u{1b}[{colour}m {word} \u{1b}[39m\u{1b}[22m src/{name}.test.js")
        };
        let mut lines: Vec<String> =
            (0..2500).map(|n| line(32, "PASS", &format!("gate_{n}"))).collect();
        lines[1300] = line(31, "FAIL", "lock");
        let log = lines.join("\n");
        let short = clip_texts(Encoding::O200kBase, &[&log], 4096);
        assert!(short.applied(&log).contains(&lines[1300]));
    }
}
