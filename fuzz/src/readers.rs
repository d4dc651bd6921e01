//! Readers of foreign bytes that need no target of their own: transcripts, exports and logs of other programs,
//! forms, and sealed items.
//!
//! The first byte of an input selects the reader: `t`, `f` or `s`. For a form the second is the size of the
//! pieces that it arrives in.

use weir::proxy::Tenant;
use weir::proxy::compaction::seal::Sealer;
use weir_engine::wire::compaction::Opened;
use weir_engine::wire::form::{FormModelFinder, only_model};

const FORM: &str = "multipart/form-data; boundary=b";

pub fn check(input: &[u8]) {
    match input {
        [b't', text @ ..] => check_transcript(text),
        [b'f', size, body @ ..] => check_form(usize::from(*size), body),
        [b's', content @ ..] => check_sealed(content),
        _ => {}
    }
}

/// Each conversation that is found is the JSON body of a request.
fn check_transcript(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(read) = weir_eval::recorded::read(text, None) else { return };
    for recorded in read.recorded {
        let body: Result<serde_json::Value, _> = serde_json::from_str(&recorded.body);
        // `serde_json` refuses what is nested too deeply.
        let is_deep = recorded.body.matches(['{', '[']).count() > 100;
        assert!(body.is_ok_and(|body| body.is_object()) || is_deep, "{}", recorded.body);
    }
}

/// Pieces of any size give the same model, and a model that nobody could read otherwise is that one.
fn check_form(size: usize, body: &[u8]) {
    let finder = || FormModelFinder::new(FORM).expect("a form");
    let (mut whole, mut pieces) = (finder(), finder());
    let model = whole.feed(body);
    let fed = body.chunks(size.max(1)).find_map(|piece| pieces.feed(piece));
    assert_eq!(model, fed, "pieces of {size}");
    let only = only_model(FORM, body);
    assert!(only.is_none() || only == model, "{only:?}, not {model:?}");
}

/// What is sealed opens for its tenant alone, and nothing else opens.
fn check_sealed(content: &[u8]) {
    let text = String::from_utf8_lossy(content);
    let (own, other) = (Tenant([1; 16]), Tenant([2; 16]));
    let sealer = Sealer::new(&[7; 32]);
    for foreign in [text.clone().into_owned(), format!("weir1.{text}")] {
        assert!(!matches!(sealer.open(own, &foreign), Ok(Some(_))), "{foreign}");
    }
    let content = Opened { is_whole: content.len().is_multiple_of(2), items: text.into_owned() };
    let sealed = sealer.seal(own, &content).expect("it is small");
    let opened = sealer.open(own, &sealed).expect("it is whole").expect("it is weir's");
    assert_eq!((opened.is_whole, &opened.items), (content.is_whole, &content.items));
    assert!(sealer.open(other, &sealed).is_err());
    let cut = &sealed[..sealed.len() - 1 - content.items.len() % 8];
    assert!(sealer.open(own, cut).is_err());
}
