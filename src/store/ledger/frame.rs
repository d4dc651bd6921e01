//! What a log of requests is made of: frames, each with its length and a checksum, so that what a
//! kill or a loss of power has left half written is told from what is whole. Texts and figures are
//! made harmless here, before they are written anywhere. Reads and writes no file.

use xxhash_rust::xxh3::xxh3_64;

use super::text::{figure, given, harmless, signed_figure};
use super::{Flags, Intent, KeyNames, RequestId, Settlement};

/// What stands before a frame's content: its length, four bytes, and its checksum, eight.
const HEAD_BYTES: usize = 12;
/// The most bytes of a frame's content. None that is written comes near it.
pub const MAX_CONTENT_BYTES: usize = 16 << 10;
/// What a frame is likely to take.
const USUAL_BYTES: usize = 320;
/// How contents are written. Another way gets another number; frames of an unknown one are passed
/// over.
const VERSION: u8 = 1;

const OPENED: u8 = 1;
const SETTLED: u8 = 2;
const RELEASED: u8 = 3;

/// A frame that says that a request is about to be sent.
pub fn opened(intent: &Intent) -> Vec<u8> {
    let mut frame = Frame::new(OPENED, intent.id);
    frame.facts(intent);
    frame.figure(intent.held_nano_usd);
    frame.figure(intent.held_tokens);
    frame.finish()
}

/// A frame that says how a request ended. All that its row holds is in it.
pub fn settled(intent: &Intent, settlement: &Settlement) -> Vec<u8> {
    let mut frame = Frame::new(SETTLED, intent.id);
    frame.facts(intent);
    frame.ending(settlement);
    frame.finish()
}

/// A frame that takes a request back.
pub fn released(id: RequestId) -> Vec<u8> {
    Frame::new(RELEASED, id).finish()
}

/// A frame that is being written.
struct Frame(Vec<u8>);

impl Frame {
    fn new(what: u8, id: RequestId) -> Self {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.resize(HEAD_BYTES, 0);
        bytes.extend([VERSION, what]);
        bytes.extend(id.0);
        Self(bytes)
    }

    fn facts(&mut self, intent: &Intent) {
        self.number(figure(Some(intent.begun_ms)).map_or(0, given));
        self.0.extend(intent.caller.tenant.0);
        let key = intent.caller.key.as_deref();
        self.0.push(u8::from(key.is_some()));
        if let Some(KeyNames { key, team, organisation, user }) = key {
            for name in [key, team, organisation, user] {
                self.text(name);
            }
        }
        for text in [&intent.route, &intent.model, &intent.upstream, &intent.action, &intent.zone] {
            self.text(text);
        }
        self.0.push(u8::from(intent.stream));
        for tokens in
            [intent.received_tokens, intent.sent_tokens, intent.max_output_tokens, intent.plan_ms]
        {
            self.figure(tokens);
        }
    }

    fn ending(&mut self, settlement: &Settlement) {
        self.text(&settlement.outcome);
        self.figure(settlement.status.map(u64::from));
        for tokens in [
            settlement.prompt_tokens,
            settlement.completion_tokens,
            settlement.cached_tokens,
            settlement.cache_write_tokens,
            settlement.reasoning_tokens,
            settlement.cost_nano_usd,
        ] {
            self.figure(tokens);
        }
        // The sign in the lowest bit.
        let saved = signed_figure(settlement.saved_nano_usd);
        self.stored(saved.map(|saved| saved.unsigned_abs() << 1 | u64::from(saved < 0)));
        self.number(u64::from(settlement.flags.0));
        self.figure(settlement.first_byte_ms);
        self.figure(settlement.total_ms);
    }

    /// Seven bits a byte, the lowest first; the eighth says that more follow.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn figure(&mut self, number: Option<u64>) {
        self.stored(figure(number).map(given));
    }

    fn stored(&mut self, number: Option<u64>) {
        self.number(number.map_or(0, |number| number + 1));
    }

    fn text(&mut self, text: &str) {
        let text = harmless(text);
        self.number(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        let content = &self.0[HEAD_BYTES..];
        assert!(content.len() <= MAX_CONTENT_BYTES, "texts are cut, and there are few of them");
        let (length, checksum) = (content.len() as u32, xxh3_64(content));
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0[4..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
        self.0
    }
}

/// What a frame says. Texts are those of the log.
#[derive(Debug)]
pub enum Said<'a> {
    Opened(Facts<'a>),
    Settled(Facts<'a>, Ending<'a>),
    Released(RequestId),
}

/// An intent as it is in a log.
#[derive(Debug)]
pub struct Facts<'a> {
    pub id: RequestId,
    pub begun_ms: u64,
    pub tenant: [u8; 16],
    /// A virtual key's id, its team, organisation and user.
    pub key: Option<[&'a str; 4]>,
    pub route: &'a str,
    pub model: &'a str,
    pub upstream: &'a str,
    pub action: &'a str,
    pub zone: &'a str,
    pub stream: bool,
    pub received_tokens: Option<u64>,
    pub sent_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub plan_ms: Option<u64>,
    /// Only in frames that open a request, and not in those of earlier versions.
    pub held_nano_usd: Option<u64>,
    pub held_tokens: Option<u64>,
}

/// A settlement as it is in a log.
#[derive(Debug)]
pub struct Ending<'a> {
    pub outcome: &'a str,
    pub status: Option<u16>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
    pub cost_nano_usd: Option<u64>,
    pub saved_nano_usd: Option<i64>,
    pub flags: Flags,
    pub first_byte_ms: Option<u64>,
    pub total_ms: Option<u64>,
}

/// Which request a frame's content is about, and whether it opens it; `None` where this weir
/// cannot tell.
pub fn about(content: &[u8]) -> Option<(RequestId, bool)> {
    let mut reader = Reader(content);
    let what = reader.what()?;
    Some((RequestId(reader.sixteen()?), what == OPENED))
}

/// Reads a frame's content; `None` where this weir does not understand it.
pub fn read(content: &[u8]) -> Option<Said<'_>> {
    let mut reader = Reader(content);
    let what = reader.what()?;
    let id = RequestId(reader.sixteen()?);
    match what {
        OPENED => Some(Said::Opened(reader.opened(id)?)),
        SETTLED => Some(Said::Settled(reader.facts(id)?, reader.ending()?)),
        RELEASED => Some(Said::Released(id)),
        _ => None,
    }
}

/// What of a content is not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn what(&mut self) -> Option<u8> {
        let version = self.byte()?;
        let what = self.byte()?;
        (version == VERSION).then_some(what)
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn sixteen(&mut self) -> Option<[u8; 16]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A number that may be missing, which is not the same as one that cannot be read.
    fn stored(&mut self) -> Option<Option<u64>> {
        Some(self.number()?.checked_sub(1))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    fn opened(&mut self, id: RequestId) -> Option<Facts<'a>> {
        let facts = self.facts(id)?;
        if self.0.is_empty() {
            return Some(facts);
        }
        Some(Facts { held_nano_usd: self.stored()?, held_tokens: self.stored()?, ..facts })
    }

    fn facts(&mut self, id: RequestId) -> Option<Facts<'a>> {
        let begun_ms = self.number()?;
        let tenant = self.sixteen()?;
        let key = match self.byte()? {
            0 => None,
            _ => Some([self.text()?, self.text()?, self.text()?, self.text()?]),
        };
        Some(Facts {
            id,
            begun_ms,
            tenant,
            key,
            route: self.text()?,
            model: self.text()?,
            upstream: self.text()?,
            action: self.text()?,
            zone: self.text()?,
            stream: self.byte()? != 0,
            received_tokens: self.stored()?,
            sent_tokens: self.stored()?,
            max_output_tokens: self.stored()?,
            plan_ms: self.stored()?,
            held_nano_usd: None,
            held_tokens: None,
        })
    }

    fn ending(&mut self) -> Option<Ending<'a>> {
        let outcome = self.text()?;
        let status = match self.stored()? {
            Some(status) => Some(u16::try_from(status).ok()?),
            None => None,
        };
        let mut figures = [None; 6];
        for figure in &mut figures {
            *figure = self.stored()?;
        }
        let [prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens, ..] = figures;
        let saved_nano_usd = self.stored()?.map(|stored| {
            let size = i64::try_from(stored >> 1).unwrap_or(i64::MAX);
            if stored & 1 == 1 { -size } else { size }
        });
        Some(Ending {
            outcome,
            status,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens: figures[4],
            cost_nano_usd: figures[5],
            saved_nano_usd,
            flags: Flags(u32::try_from(self.number()?).ok()?),
            first_byte_ms: self.stored()?,
            total_ms: self.stored()?,
        })
    }
}

/// What follows the bytes of a log that are at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// More of the log.
    More,
    /// What its owner is going to write.
    Owner,
    /// Nothing, ever.
    Nothing,
}

/// The contents of whole frames, one after the other.
///
/// An owner leaves nothing broken before what it writes next. Where it has ended, a loss of power
/// may have: then all that is whole behind that is found as well.
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    behind: Behind,
    /// Whether more than the frames' owner may write on is looked for.
    skips: bool,
}

impl<'a> Frames<'a> {
    /// Of `bytes`; where `is_ended`, nobody writes to the log any more.
    pub fn new(bytes: &'a [u8], behind: Behind, is_ended: bool) -> Self {
        Self { bytes, at: 0, behind, skips: is_ended }
    }

    /// How many bytes are done with.
    pub fn done_bytes(&self) -> usize {
        self.at
    }

    /// The frame that begins `at`.
    fn frame(&self, at: usize) -> Found<'a> {
        let rest = &self.bytes[at..];
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Found::Unended };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > MAX_CONTENT_BYTES {
            return Found::Broken;
        }
        let Some((checksum, rest)) = rest.split_first_chunk::<8>() else { return Found::Unended };
        let Some(content) = rest.get(..length) else { return Found::Unended };
        if u64::from_le_bytes(*checksum) == xxh3_64(content) {
            Found::Whole(content)
        } else {
            Found::Broken
        }
    }
}

/// What begins at a place of a log.
enum Found<'a> {
    Whole(&'a [u8]),
    /// Something whose end is not at hand.
    Unended,
    Broken,
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.at < self.bytes.len() {
            match self.frame(self.at) {
                Found::Whole(content) => {
                    self.at += HEAD_BYTES + content.len();
                    return Some(content);
                }
                Found::Unended if self.behind != Behind::Nothing => return None,
                _ if self.skips => self.at += 1,
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Caller, DAY_MS, Tenant};
    use super::*;

    fn intent(number: u8) -> Intent {
        Intent {
            id: RequestId::new(DAY_MS, [number; 10]),
            begun_ms: u64::MAX,
            caller: Caller { tenant: Tenant([7; 16]), key: None },
            route: "/v1/\u{0}chat".to_owned(),
            model: "ünïcödé 模型".to_owned(),
            upstream: String::new(),
            stream: true,
            action: "a".repeat(1000),
            zone: "green".to_owned(),
            received_tokens: Some(0),
            sent_tokens: None,
            max_output_tokens: Some(u64::MAX),
            plan_ms: Some(127),
            held_nano_usd: Some(u64::MAX),
            held_tokens: Some(0),
        }
    }

    fn settlement() -> Settlement {
        Settlement {
            outcome: "complete".to_owned(),
            status: Some(u16::MAX),
            prompt_tokens: Some(128),
            completion_tokens: None,
            cost_nano_usd: Some(u64::MAX),
            saved_nano_usd: Some(i64::MIN),
            flags: Flags::ESTIMATED | Flags::UNPRICED,
            total_ms: Some(0),
            ..Settlement::default()
        }
    }

    fn contents(bytes: &[u8], behind: Behind, is_ended: bool) -> (Vec<Vec<u8>>, usize) {
        let mut frames = Frames::new(bytes, behind, is_ended);
        let found = frames.by_ref().map(<[u8]>::to_vec).collect();
        (found, frames.done_bytes())
    }

    #[test]
    fn what_is_written_is_read() {
        let names = ["key", "team", "organisation", "user"];
        let [key, team, organisation, user] = names.map(str::to_owned);
        let mut keyed = intent(1);
        keyed.caller.key = Some(KeyNames { key, team, organisation, user }.into());
        for (intent, key) in [(intent(1), None), (keyed, Some(names))] {
            let frame = settled(&intent, &settlement());
            let (found, done) = contents(&frame, Behind::Owner, false);
            assert_eq!((found.len(), done), (1, frame.len()));
            let Some(Said::Settled(facts, ending)) = read(&found[0]) else { panic!("{found:?}") };
            assert_eq!((facts.id, facts.begun_ms), (intent.id, 1 << 53));
            assert_eq!((facts.tenant, facts.key), ([7; 16], key));
            assert_eq!((facts.route, facts.model), ("/v1/\u{fffd}chat", "ünïcödé 模型"));
            assert_eq!((facts.action.len(), facts.zone, facts.stream), (200, "green", true));
            assert_eq!((facts.received_tokens, facts.sent_tokens), (Some(0), None));
            assert_eq!((facts.max_output_tokens, facts.plan_ms), (Some(1 << 53), Some(127)));
            assert_eq!((ending.outcome, ending.status), ("complete", Some(u16::MAX)));
            assert_eq!((ending.prompt_tokens, ending.completion_tokens), (Some(128), None));
            assert_eq!(ending.cost_nano_usd, Some(1 << 53));
            assert_eq!(ending.saved_nano_usd, Some(-(1 << 53)));
            assert_eq!((ending.first_byte_ms, ending.total_ms), (None, Some(0)));
            assert_eq!(ending.flags, Flags::ESTIMATED | Flags::UNPRICED);
        }
    }

    #[test]
    fn a_frame_that_opens_a_request_has_what_it_holds_unless_it_is_of_an_earlier_version() {
        let intent = intent(1);
        let frame = opened(&intent);
        let held = |content: &[u8]| match read(content) {
            Some(Said::Opened(facts)) => Some((facts.held_nano_usd, facts.held_tokens)),
            _ => None,
        };
        let content = &frame[HEAD_BYTES..];
        assert_eq!(held(content), Some((Some(1 << 53), Some(0))));
        let mut earlier = Frame::new(OPENED, intent.id);
        earlier.facts(&intent);
        let earlier = earlier.finish();
        assert_eq!(held(&earlier[HEAD_BYTES..]), Some((None, None)));
        assert_eq!(held(&content[..content.len() - 1]), None, "it is cut off");
    }

    #[test]
    fn contents_that_are_cut_or_unknown_are_not_understood() {
        let frame = settled(&intent(1), &settlement());
        let content = &frame[HEAD_BYTES..];
        for length in 0..content.len() {
            assert!(read(&content[..length]).is_none(), "{length}");
        }
        let mut later = content.to_vec();
        later[0] = VERSION + 1;
        assert!(read(&later).is_none() && about(&later).is_none());
        assert_eq!(about(content), Some((intent(1).id, false)));
        assert_eq!(about(&opened(&intent(2))[HEAD_BYTES..]), Some((intent(2).id, true)));
        assert!(matches!(read(&released(intent(3).id)[HEAD_BYTES..]), Some(Said::Released(_))));
    }

    #[test]
    fn a_log_cut_anywhere_gives_its_whole_frames() {
        let frames = [opened(&intent(1)), settled(&intent(1), &settlement()), opened(&intent(2))];
        let log = frames.concat();
        for length in 0..=log.len() {
            let ends = [0, frames[0].len(), frames[0].len() + frames[1].len(), log.len()];
            let whole = ends.iter().rposition(|end| *end <= length).expect("zero is");
            for behind in [Behind::More, Behind::Owner] {
                let (found, done) = contents(&log[..length], behind, false);
                assert_eq!((found.len(), done), (whole, ends[whole]), "{length}");
            }
            let (found, done) = contents(&log[..length], Behind::Nothing, true);
            assert_eq!((found.len(), done), (whole, length), "{length}");
        }
    }

    #[test]
    fn what_is_whole_behind_a_broken_place_is_found_once_nobody_writes() {
        let frame = opened(&intent(1));
        for broken in [vec![0; 4096], vec![0xff; 100], frame[..50].to_vec(), {
            let mut frame = frame.clone();
            frame[20] ^= 1;
            frame
        }] {
            let log = [&frame[..], &broken, &opened(&intent(2))].concat();
            let (found, done) = contents(&log, Behind::Owner, false);
            assert_eq!((found.len(), done), (1, frame.len()), "an owner may be writing there");
            let (found, done) = contents(&log, Behind::Nothing, true);
            assert_eq!((found.len(), done), (2, log.len()));
        }
    }
}
