//! `[models."NAME"]`: models that weir does not know, and overrides for those that it does.

use std::collections::BTreeMap;

use super::keys::MODELS;
use super::policies::Policies;
use super::prices;
use super::reader::{Keys, Reader};
use super::{Catalogue, ModelEntry, ModelSettings};
use weir_engine::tokens::Encoding;

/// Reads `[models."NAME"]`: the catalogue with these entries on top, and other settings per model.
pub(super) fn models(
    reader: &mut Reader,
    policies: &Policies,
) -> (Catalogue, BTreeMap<String, ModelSettings>) {
    let mut catalogue = Catalogue::default();
    let mut settings = BTreeMap::new();
    for name in reader.names("models") {
        let known = catalogue.find(&name);
        let is_known = known.name.is_some();
        let path = ["models", name.as_str()];
        let entry = model(&mut reader.at(&MODELS, &path), known.entry, is_known);
        catalogue.insert(&name, entry);
        if let Some(price) = prices::price(reader, &path, false) {
            catalogue.insert_price(&name, price);
        }
        let own = model_settings(&mut reader.at(&MODELS, &path), policies);
        settings.insert(name.to_ascii_lowercase(), own);
    }
    (catalogue, settings)
}

/// Reads the settings of `[models."NAME"]` besides its entry.
fn model_settings(keys: &mut Keys<'_, '_>, policies: &Policies) -> ModelSettings {
    let settings = ModelSettings {
        policy: keys.written_text("policy", |text| policies.read_name(text)),
        cache_control: keys.get("cache_control"),
        late_system: keys.get("late_system"),
        token_permille: keys.written("token_ratio"),
        tokenizer: keys.written_text("tokenizer", |text| match text.trim() {
            "" => Err("is empty; give the path of the tokenizer.json that comes with the model"
                .to_owned()),
            text => Ok(text.to_owned()),
        }),
    };
    for other in ["encoding", "token_ratio"] {
        if settings.tokenizer.is_some() && !keys.is_absent(other) {
            let message =
                format!("sets how the model's tokens are counted, as {other} does; keep one");
            keys.refuse("tokenizer", message);
        }
    }
    settings
}

/// Reads the entry of `[models."NAME"]`, on top of the known one.
fn model(keys: &mut Keys<'_, '_>, known: ModelEntry, is_known: bool) -> ModelEntry {
    let window: Option<u64> = keys.written("window_tokens");
    let input = keys.written("max_input_tokens");
    let output = keys.written("max_output_tokens");
    let encoding = keys.written_text("encoding", |text| {
        Encoding::from_name(text)
            .ok_or_else(|| format!("{text:?} is not an encoding; write {}", Encoding::names()))
    });
    let strict_alternation = keys.written("strict_alternation");
    if !is_known && keys.is_absent("window_tokens") {
        let message = "is missing: weir does not know this model, so it needs at least \
                       window_tokens (input and output together)";
        keys.refuse("window_tokens", message);
    }
    let window_tokens = window.unwrap_or(known.window_tokens);
    for (key, value) in [("max_input_tokens", input), ("max_output_tokens", output)] {
        if value.is_some_and(|value| value > window_tokens) {
            let message = format!("is more than the model's window_tokens ({window_tokens})");
            keys.refuse(key, message);
        }
    }
    // A configured window overrides inherited limits; for an unknown model they are a guess.
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
