//! Records of the write-ahead log, each with a length and a checksum, so that a record torn by a
//! kill or a power loss is detected. Texts and figures are sanitised here, before they are written
//! anywhere. No I/O.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::ledger::text::{figure, from_stored, sanitise, signed_figure};
use crate::ledger::{Flags, Intent, KeyNames, RequestId, Settlement};

/// Size of a record's header: length, four bytes, and checksum, eight bytes.
const HEADER_BYTES: usize = 12;
/// Maximum size of a record's content; no real one comes near it.
pub(crate) const MAX_CONTENT_BYTES: usize = 16 << 10;
/// Typical size of a record.
const USUAL_BYTES: usize = 320;
/// Version of the content format. Records of unknown versions are skipped.
const VERSION: u8 = 1;

const OPENED: u8 = 1;
const SETTLED: u8 = 2;
const RELEASED: u8 = 3;

/// Encodes a record for a request that is about to be sent.
pub(crate) fn opened(intent: &Intent) -> Vec<u8> {
    let mut encoder = Encoder::new(OPENED, intent.id);
    encoder.intent(intent);
    encoder.figure(intent.held_nano_usd);
    encoder.figure(intent.held_tokens);
    encoder.labels(intent, None);
    encoder.finish()
}

/// Encodes a record for a request's end, with all data of its row.
pub(crate) fn settled(intent: &Intent, settlement: &Settlement) -> Vec<u8> {
    let mut encoder = Encoder::new(SETTLED, intent.id);
    encoder.intent(intent);
    encoder.settlement(settlement);
    encoder.labels(intent, settlement.planned_saved_nano_usd);
    encoder.finish()
}

/// Encodes a record that withdraws a request.
pub(crate) fn released(id: RequestId) -> Vec<u8> {
    Encoder::new(RELEASED, id).finish()
}

/// A record being written.
struct Encoder(Vec<u8>);

impl Encoder {
    fn new(kind: u8, id: RequestId) -> Self {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend([VERSION, kind]);
        bytes.extend(id.0);
        Self(bytes)
    }

    fn intent(&mut self, intent: &Intent) {
        self.varint(figure(Some(intent.begun_ms)).map_or(0, from_stored));
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

    fn settlement(&mut self, settlement: &Settlement) {
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
        self.signed_figure(settlement.saved_nano_usd);
        self.varint(u64::from(settlement.flags.0));
        self.figure(settlement.first_byte_ms);
        self.figure(settlement.total_ms);
    }

    /// Writes the labels, what was `planned`, and the tag, as far as there are any. They end a record, so that
    /// those of earlier versions are read too.
    fn labels(&mut self, intent: &Intent, planned: Option<i64>) {
        let labels = intent.attribution.labels();
        let tag = intent.attribution.tag.as_deref();
        let has_more = planned.is_some() || tag.is_some();
        if labels.iter().any(Option::is_some) || has_more {
            labels.into_iter().for_each(|label| self.text(label.unwrap_or_default()));
        }
        if has_more {
            self.signed_figure(planned);
        }
        tag.into_iter().for_each(|tag| self.text(tag));
    }

    /// Writes seven bits per byte, lowest first; the eighth bit marks continuation.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn figure(&mut self, number: Option<u64>) {
        self.optional_varint(figure(number).map(from_stored));
    }

    /// Writes a figure whose lowest bit is its sign.
    fn signed_figure(&mut self, number: Option<i64>) {
        let number = signed_figure(number);
        let with_sign = |number: i64| number.unsigned_abs() << 1 | u64::from(number < 0);
        self.optional_varint(number.map(with_sign));
    }

    fn optional_varint(&mut self, number: Option<u64>) {
        self.varint(number.map_or(0, |number| number + 1));
    }

    fn text(&mut self, text: &str) {
        let text = sanitise(text);
        self.varint(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        let content = &self.0[HEADER_BYTES..];
        assert!(content.len() <= MAX_CONTENT_BYTES, "texts are truncated and few");
        let (length, checksum) = (content.len() as u32, xxh3_64(content));
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0[4..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        self.0
    }
}

/// Decoded content of a record. Texts borrow from the log.
#[derive(Debug)]
pub(crate) enum Record<'a> {
    Opened(IntentRecord<'a>),
    Settled(IntentRecord<'a>, SettlementRecord<'a>),
    Released(RequestId),
}

/// An intent in the log, or in the column `facts` of its row, which has the rest in columns.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "Text: Deserialize<'de> + Default"))]
pub(crate) struct IntentFacts<Text> {
    #[serde(skip)]
    pub id: RequestId,
    #[serde(skip)]
    pub begun_ms: u64,
    pub tenant: [u8; 16],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyNames<Text>>,
    pub route: Text,
    pub model: Text,
    pub upstream: Text,
    pub action: Text,
    pub zone: Text,
    pub stream: bool,
    pub received_tokens: Option<u64>,
    pub sent_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub plan_ms: Option<u64>,
    /// Only in opening records, and not in those of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_nano_usd: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_tokens: Option<u64>,
    /// Conversation, agent, parent and class.
    #[serde(skip_serializing_if = "is_unlabelled")]
    pub labels: [Option<Text>; 4],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<Text>,
}

fn is_unlabelled<Text>(labels: &[Option<Text>; 4]) -> bool {
    labels.iter().all(Option::is_none)
}

/// An intent in the log.
pub(crate) type IntentRecord<'a> = IntentFacts<&'a str>;

/// A settlement in the log.
pub(crate) type SettlementRecord<'a> = Settlement<&'a str>;

/// Returns a record's request, and whether the record opens it; `None` if this version cannot read
/// it.
pub(crate) fn header(content: &[u8]) -> Option<(RequestId, bool)> {
    let mut decoder = Decoder(content);
    let kind = decoder.kind()?;
    Some((RequestId(decoder.bytes16()?), kind == OPENED))
}

/// Decodes a record's content; `None` if this version cannot read it.
pub(crate) fn decode(content: &[u8]) -> Option<Record<'_>> {
    let mut decoder = Decoder(content);
    let kind = decoder.kind()?;
    let id = RequestId(decoder.bytes16()?);
    match kind {
        OPENED => Some(Record::Opened(decoder.opened(id)?)),
        SETTLED => {
            let (mut intent, mut settlement) = (decoder.intent(id)?, decoder.settlement()?);
            settlement.planned_saved_nano_usd = decoder.labels(&mut intent)?;
            Some(Record::Settled(intent, settlement))
        }
        RELEASED => Some(Record::Released(id)),
        _ => None,
    }
}

/// Remaining content to decode.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn kind(&mut self) -> Option<u8> {
        let version = self.byte()?;
        let kind = self.byte()?;
        (version == VERSION).then_some(kind)
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn bytes16(&mut self) -> Option<[u8; 16]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn varint(&mut self) -> Option<u64> {
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

    /// Reads an optional number; the outer `None` is a decoding error.
    fn optional_varint(&mut self) -> Option<Option<u64>> {
        Some(self.varint()?.checked_sub(1))
    }

    fn signed_figure(&mut self) -> Option<Option<i64>> {
        let signed = |stored: u64| {
            let size = i64::try_from(stored >> 1).unwrap_or(i64::MAX);
            if stored & 1 == 1 { -size } else { size }
        };
        Some(self.optional_varint()?.map(signed))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    fn opened(&mut self, id: RequestId) -> Option<IntentRecord<'a>> {
        let mut intent = self.intent(id)?;
        if self.0.is_empty() {
            return Some(intent);
        }
        intent.held_nano_usd = self.optional_varint()?;
        intent.held_tokens = self.optional_varint()?;
        self.labels(&mut intent)?;
        Some(intent)
    }

    /// Reads the labels at the end of a record, as far as its version has them, and returns what was planned.
    fn labels(&mut self, intent: &mut IntentRecord<'a>) -> Option<Option<i64>> {
        if self.0.is_empty() {
            return Some(None);
        }
        for label in &mut intent.labels {
            *label = Some(self.text()?).filter(|text| !text.is_empty());
        }
        let planned = if self.0.is_empty() { None } else { self.signed_figure()? };
        if !self.0.is_empty() {
            intent.tag = Some(self.text()?).filter(|text| !text.is_empty());
        }
        Some(planned)
    }

    fn intent(&mut self, id: RequestId) -> Option<IntentRecord<'a>> {
        let begun_ms = self.varint()?;
        let tenant = self.bytes16()?;
        let key = match self.byte()? {
            0 => None,
            _ => Some(KeyNames {
                key: self.text()?,
                team: self.text()?,
                organisation: self.text()?,
                user: self.text()?,
            }),
        };
        Some(IntentRecord {
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
            received_tokens: self.optional_varint()?,
            sent_tokens: self.optional_varint()?,
            max_output_tokens: self.optional_varint()?,
            plan_ms: self.optional_varint()?,
            held_nano_usd: None,
            held_tokens: None,
            labels: [None; 4],
            tag: None,
        })
    }

    fn settlement(&mut self) -> Option<SettlementRecord<'a>> {
        let outcome = self.text()?;
        let status = match self.optional_varint()? {
            Some(status) => Some(u16::try_from(status).ok()?),
            None => None,
        };
        let mut figures = [None; 6];
        for figure in &mut figures {
            *figure = self.optional_varint()?;
        }
        let [prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens, ..] = figures;
        let saved_nano_usd = self.signed_figure()?;
        Some(Settlement {
            outcome,
            status,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens: figures[4],
            cost_nano_usd: figures[5],
            saved_nano_usd,
            planned_saved_nano_usd: None,
            flags: Flags(u32::try_from(self.varint()?).ok()?),
            first_byte_ms: self.optional_varint()?,
            total_ms: self.optional_varint()?,
        })
    }
}

/// Data that follows the bytes that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// More of the log.
    More,
    /// The owner's next write.
    OwnerWrites,
    /// Nothing: the log is complete.
    Nothing,
}

/// Iterator over the contents of complete records.
///
/// A live owner leaves no damage before its next write. After its end, a power loss may have left
/// some: complete records after the damage are found as well.
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    offset: usize,
    remainder: Remainder,
    /// Whether to search for records after damage.
    skips_damage: bool,
}

impl<'a> Records<'a> {
    /// Reads `bytes`; `is_ended` means that no process writes to the log any more.
    pub(crate) fn new(bytes: &'a [u8], remainder: Remainder, is_ended: bool) -> Self {
        Self { bytes, offset: 0, remainder, skips_damage: is_ended }
    }

    /// Returns the number of bytes consumed.
    pub(crate) fn consumed_bytes(&self) -> usize {
        self.offset
    }

    /// Parses the record at `offset`.
    fn parse(&self, offset: usize) -> Parsed<'a> {
        let rest = &self.bytes[offset..];
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Parsed::Incomplete };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > MAX_CONTENT_BYTES {
            return Parsed::Corrupt;
        }
        let Some((checksum, rest)) = rest.split_first_chunk::<8>() else {
            return Parsed::Incomplete;
        };
        let Some(content) = rest.get(..length) else { return Parsed::Incomplete };
        if u64::from_le_bytes(*checksum) == xxh3_64(content) {
            Parsed::Complete(content)
        } else {
            Parsed::Corrupt
        }
    }
}

/// Result of parsing at an offset.
enum Parsed<'a> {
    Complete(&'a [u8]),
    /// A record whose end is not read yet.
    Incomplete,
    Corrupt,
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.offset < self.bytes.len() {
            match self.parse(self.offset) {
                Parsed::Complete(content) => {
                    self.offset += HEADER_BYTES + content.len();
                    return Some(content);
                }
                Parsed::Incomplete if self.remainder != Remainder::Nothing => return None,
                _ if self.skips_damage => self.offset += 1,
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;
    use crate::ledger::{Attribution, Caller, DAY_MS};

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
            attribution: Attribution::default(),
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

    fn contents(bytes: &[u8], remainder: Remainder, is_ended: bool) -> (Vec<Vec<u8>>, usize) {
        let mut records = Records::new(bytes, remainder, is_ended);
        let found = records.by_ref().map(<[u8]>::to_vec).collect();
        (found, records.consumed_bytes())
    }

    #[test]
    fn records_round_trip() {
        let names = ["key", "team", "organisation", "user"];
        let [key, team, organisation, user] = names.map(str::to_owned);
        let mut keyed = intent(1);
        keyed.caller.key = Some(KeyNames { key, team, organisation, user }.into());
        let labels = [Some("c"), None, Some("\0"), Some("main")];
        let labels = labels.map(|label| label.map(str::to_owned));
        keyed.attribution = Attribution::from_labels(labels, Some("t".to_owned()));
        let read = [Some("c"), None, Some("\u{fffd}"), Some("main")];
        for (intent, key, labels) in [(intent(1), None, [None; 4]), (keyed, Some(names), read)] {
            let keyed_tag = key.map(|_| "t");
            assert!(matches!(decode(&opened(&intent)[HEADER_BYTES..]), Some(Record::Opened(facts))
                if facts.labels == labels && facts.tag == keyed_tag && facts.held_tokens == Some(0)));
            let planned_saved_nano_usd = key.map(|_| -5);
            let record = settled(&intent, &Settlement { planned_saved_nano_usd, ..settlement() });
            let (found, done) = contents(&record, Remainder::OwnerWrites, false);
            assert_eq!((found.len(), done), (1, record.len()));
            let Some(Record::Settled(facts, ending)) = decode(&found[0]) else {
                panic!("{found:?}")
            };
            assert_eq!((facts.id, facts.begun_ms), (intent.id, 1 << 53));
            let [key, team, organisation, user] = key.unwrap_or_default();
            let names = KeyNames { key, team, organisation, user };
            assert_eq!(facts.key.unwrap_or_default(), names);
            assert_eq!((facts.tenant, facts.labels), ([7; 16], labels));
            assert_eq!(facts.tag, keyed_tag);
            assert_eq!((facts.route, facts.model), ("/v1/\u{fffd}chat", "ünïcödé 模型"));
            assert_eq!((facts.action.len(), facts.zone, facts.stream), (200, "green", true));
            assert_eq!((facts.received_tokens, facts.sent_tokens), (Some(0), None));
            assert_eq!((facts.max_output_tokens, facts.plan_ms), (Some(1 << 53), Some(127)));
            assert_eq!((ending.outcome, ending.status), ("complete", Some(u16::MAX)));
            assert_eq!((ending.prompt_tokens, ending.completion_tokens), (Some(128), None));
            assert_eq!(ending.cost_nano_usd, Some(1 << 53));
            assert_eq!(ending.saved_nano_usd, Some(-(1 << 53)));
            assert_eq!(ending.planned_saved_nano_usd, planned_saved_nano_usd);
            assert_eq!((ending.first_byte_ms, ending.total_ms), (None, Some(0)));
            assert_eq!(ending.flags, Flags::ESTIMATED | Flags::UNPRICED);
        }
    }

    #[test]
    fn an_opening_record_has_its_hold_unless_an_earlier_version_wrote_it() {
        let intent = intent(1);
        let record = opened(&intent);
        let held = |content: &[u8]| match decode(content) {
            Some(Record::Opened(facts)) => Some((facts.held_nano_usd, facts.held_tokens)),
            _ => None,
        };
        let content = &record[HEADER_BYTES..];
        assert_eq!(held(content), Some((Some(1 << 53), Some(0))));
        let mut earlier = Encoder::new(OPENED, intent.id);
        earlier.intent(&intent);
        let earlier = earlier.finish();
        assert_eq!(held(&earlier[HEADER_BYTES..]), Some((None, None)));
        assert_eq!(held(&content[..content.len() - 1]), None, "it is cut off");
    }

    #[test]
    fn truncated_and_unknown_contents_are_not_decoded() {
        let record = settled(&intent(1), &settlement());
        let content = &record[HEADER_BYTES..];
        for length in 0..content.len() {
            assert!(decode(&content[..length]).is_none(), "{length}");
        }
        let mut later = content.to_vec();
        later[0] = VERSION + 1;
        assert!(decode(&later).is_none() && header(&later).is_none());
        assert_eq!(header(content), Some((intent(1).id, false)));
        assert_eq!(header(&opened(&intent(2))[HEADER_BYTES..]), Some((intent(2).id, true)));
        assert!(matches!(
            decode(&released(intent(3).id)[HEADER_BYTES..]),
            Some(Record::Released(_))
        ));
    }

    #[test]
    fn a_log_cut_anywhere_yields_its_complete_records() {
        let records = [opened(&intent(1)), settled(&intent(1), &settlement()), opened(&intent(2))];
        let log = records.concat();
        for length in 0..=log.len() {
            let ends = [0, records[0].len(), records[0].len() + records[1].len(), log.len()];
            let whole = ends.iter().rposition(|end| *end <= length).expect("zero is");
            for remainder in [Remainder::More, Remainder::OwnerWrites] {
                let (found, done) = contents(&log[..length], remainder, false);
                assert_eq!((found.len(), done), (whole, ends[whole]), "{length}");
            }
            let (found, done) = contents(&log[..length], Remainder::Nothing, true);
            assert_eq!((found.len(), done), (whole, length), "{length}");
        }
    }

    #[test]
    fn complete_records_after_damage_are_found_once_nobody_writes() {
        let record = opened(&intent(1));
        for damage in [vec![0; 4096], vec![0xff; 100], record[..50].to_vec(), {
            let mut record = record.clone();
            record[20] ^= 1;
            record
        }] {
            let log = [&record[..], &damage, &opened(&intent(2))].concat();
            let (found, done) = contents(&log, Remainder::OwnerWrites, false);
            assert_eq!((found.len(), done), (1, record.len()), "an owner may be writing there");
            let (found, done) = contents(&log, Remainder::Nothing, true);
            assert_eq!((found.len(), done), (2, log.len()));
        }
    }
}
