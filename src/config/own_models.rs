//! `[models."NAME"]`: models that weir does not know, and other numbers for those that it does.

use std::collections::BTreeMap;

use super::policies::Policies;
use super::prices;
use super::raw::MAX_TOKENS;
use super::reader::Reader;
use super::{Catalogue, LateSystem, ModelEntry, ModelSettings, set};
use crate::tokens::Encoding;

/// Reads `[models."NAME"]`: the catalogue with these on top, and what is set beside it.
pub(super) fn models(
    reader: &mut Reader,
    policies: &Policies,
) -> (Catalogue, BTreeMap<String, ModelSettings>) {
    let mut catalogue = Catalogue::shipped();
    let mut settings = BTreeMap::new();
    for name in reader.names("models") {
        let known = catalogue.find(&name);
        let is_known = known.name.is_some();
        let entry = model(reader, &name, known.entry, is_known);
        catalogue.insert(&name, entry);
        if let Some(price) = prices::price(reader, &["models", &name], false) {
            catalogue.insert_price(&name, price);
        }
        let own = model_settings(reader, &name, policies);
        settings.insert(name.to_ascii_lowercase(), own);
    }
    (catalogue, settings)
}

/// What one `[models."name"]` says beside its entry.
fn model_settings(reader: &mut Reader, name: &str, policies: &Policies) -> ModelSettings {
    let path = |key| ["models", name, key];
    let policy = reader.text(&path("policy"), |text| policies.read_name(text));
    let mut settings = ModelSettings { policy, ..ModelSettings::default() };
    set(&mut settings.cache_control, reader.switch(&path("cache_control")));
    let late = [("keep", LateSystem::Keep), ("user", LateSystem::User)];
    set(&mut settings.late_system, reader.choice(&path("late_system"), &late));
    settings.token_permille = reader.share_permille(&path("token_ratio"), 500..=4000);
    settings.tokenizer = reader.text(&path("tokenizer"), |text| match text.trim() {
        "" => Err("is empty; give the path of the tokenizer.json that comes with the model".into()),
        text => Ok(text.to_owned()),
    });
    for other in ["encoding", "token_ratio"] {
        if settings.tokenizer.is_some() && !reader.is_absent(&path(other)) {
            let message =
                format!("says how the model's tokens are counted, as {other} does; keep one");
            reader.refuse(&path("tokenizer"), message);
        }
    }
    settings
}

/// The entry of one `[models."name"]`, on top of what is known of it.
fn model(reader: &mut Reader, name: &str, known: ModelEntry, is_known: bool) -> ModelEntry {
    let path = |key| ["models", name, key];
    let mut tokens = |key| reader.whole(&path(key), 1..=MAX_TOKENS);
    let window = tokens("window_tokens");
    let input = tokens("max_input_tokens");
    let output = tokens("max_output_tokens");
    let encoding = reader.text(&path("encoding"), |text| {
        Encoding::from_name(text)
            .ok_or_else(|| format!("{text:?} is no encoding; write {}", Encoding::names()))
    });
    let strict_alternation = reader.switch(&path("strict_alternation"));
    if !is_known && reader.is_absent(&path("window_tokens")) {
        let message = "is missing: weir knows no model of this name, so it needs at least its \
                       window_tokens (input and output together)";
        reader.refuse(&path("window_tokens"), message);
    }
    let window_tokens = window.unwrap_or(known.window_tokens);
    for (key, value) in [("max_input_tokens", input), ("max_output_tokens", output)] {
        if value.is_some_and(|value| value > window_tokens) {
            let message = format!("is more than the model's window_tokens ({window_tokens})");
            reader.refuse(&path(key), message);
        }
    }
    // What is inherited gives way to a window that is given; of an unknown model it is a guess.
    let inherited =
        |tokens: Option<u64>| tokens.filter(|&tokens| is_known && tokens < window_tokens);
    ModelEntry {
        window_tokens,
        max_input_tokens: input.or(inherited(known.max_input_tokens)),
        max_output_tokens: output.or(inherited(known.max_output_tokens)),
        encoding: encoding.unwrap_or(known.encoding),
        strict_alternation: strict_alternation.unwrap_or(known.strict_alternation),
    }
}
