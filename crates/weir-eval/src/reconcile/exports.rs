//! Exports of providers: answers of OpenAI's APIs of usage and costs and of Anthropic's reports of usage and cost,
//! in JSON, and tables of both with the same columns. Refuses what it does not know.

use std::ops::Range;

use serde_json::Value;

use super::{Amounts, Measured, ModelDay};
use weir_store::budget::calendar::{DAY_MS, read_day};
use weir_store::budget::money::scaled;

/// Names of amounts that providers give, in tokens or requests. The input of OpenAI has the next two in it.
const COUNTS: [(&str, Measured); 13] = [
    ("num_model_requests", Measured::Requests),
    ("input_tokens", Measured::Input),
    ("uncached_input_tokens", Measured::Input),
    ("usage_input_tokens_no_cache", Measured::Input),
    ("input_cached_tokens", Measured::Cached),
    ("cache_read_input_tokens", Measured::Cached),
    ("usage_input_tokens_cache_read", Measured::Cached),
    ("input_cache_write_tokens", Measured::Written),
    ("cache_creation_input_tokens", Measured::Written),
    ("usage_input_tokens_cache_write_5m", Measured::Written),
    ("usage_input_tokens_cache_write_1h", Measured::Written),
    ("output_tokens", Measured::Output),
    ("usage_output_tokens", Measured::Output),
];
/// Names of days, models and keys.
const DAYS: [&str; 5] = ["start_time", "starting_at", "date", "usage_date_utc", "start_time_iso"];
const MODELS: [&str; 3] = ["model", "model_version", "line_item"];
const KEYS: [&str; 2] = ["api_key_id", "api_key"];

/// What a provider counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Export {
    /// Days that it covers, counted from 1970.
    pub days: Range<u64>,
    pub counted: Vec<ModelDay>,
}

/// Reads an export. Only lines of the provider's key with this ID count, if one is given.
///
/// # Errors
///
/// If the text is no export that is known, or an amount has another currency than dollars.
pub fn read(text: &str, key: Option<&str>) -> Result<Export, String> {
    let text = text.trim_start_matches('\u{feff}');
    let mut export = Export::default();
    if text.trim_start().starts_with(['{', '[']) {
        let pages = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        for page in pages {
            let page = page.map_err(|error| format!("it is not JSON ({error})"))?;
            add_page(&page, key, &mut export)?;
        }
    } else {
        add_table(text, key, &mut export)?;
    }
    match export.days.is_empty() {
        true => Err("it has no days with usage or cost of OpenAI or Anthropic".to_owned()),
        false => Ok(export),
    }
}

fn add_page(page: &Value, key: Option<&str>, export: &mut Export) -> Result<(), String> {
    if let Some(pages) = page.as_array() {
        return pages.iter().try_for_each(|page| add_page(page, key, export));
    }
    let buckets = page.get("data").and_then(Value::as_array);
    let buckets = buckets.ok_or("it has no `data`, as answers of the providers' APIs have")?;
    for bucket in buckets {
        let day = DAYS.iter().find_map(|name| day(bucket.get(name)?));
        let day = day.ok_or("a bucket has neither start_time nor starting_at")?;
        export.cover(day);
        let results = bucket.get("results").and_then(Value::as_array);
        for result in results.ok_or("a bucket has no results")? {
            add_line(&|name| result.get(name).cloned(), day, key, export)?;
        }
    }
    Ok(())
}

fn add_table(text: &str, key: Option<&str>, export: &mut Export) -> Result<(), String> {
    let mut rows = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let names = rows.headers().map_err(|error| format!("it is no table ({error})"))?.clone();
    for (number, row) in rows.records().enumerate() {
        let row = row.map_err(|error| format!("row {} cannot be read ({error})", number + 1))?;
        let cell = |name: &str| {
            let place = names.iter().position(|own| own.trim() == name)?;
            let cell = row.get(place).map(str::trim).filter(|cell| !cell.is_empty())?;
            Some(Value::from(cell))
        };
        let day = DAYS.iter().find_map(|name| day(&cell(name)?));
        let day = day.ok_or_else(|| format!("row {} has no day", number + 1))?;
        export.cover(day);
        add_line(&cell, day, key, export)?;
    }
    Ok(())
}

/// Adds a line of amounts.
fn add_line(
    get: &dyn Fn(&str) -> Option<Value>,
    day: u64,
    key: Option<&str>,
    export: &mut Export,
) -> Result<(), String> {
    let get = |name: &str| get(name).filter(|value| !value.is_null());
    let text = |name: &str| get(name).and_then(|value| Some(value.as_str()?.to_owned()));
    if key.is_some() && KEYS.iter().find_map(|name| text(name)).as_deref() != key {
        return Ok(());
    }
    let mut amounts = Amounts::default();
    let mut add = |kind: Measured, more: u64| {
        let sum = &mut amounts[kind as usize];
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    };
    let mut is_known = false;
    for (name, kind) in COUNTS {
        if let Some(value) = get(name) {
            is_known = true;
            add(kind, count(&value).ok_or_else(|| format!("{name} is no count: {value}"))?);
        }
    }
    if let Some(Value::Object(written)) = get("cache_creation") {
        is_known = true;
        written.values().filter_map(count).for_each(|tokens| add(Measured::Written, tokens));
    }
    if let Some(nano_usd) = cost(&get)? {
        is_known = true;
        add(Measured::Cost, nano_usd);
    }
    if !is_known {
        return Err("it has lines without a known count or amount".to_owned());
    }
    if get("input_tokens").is_some() {
        let [cached, written] =
            [Measured::Cached, Measured::Written].map(|kind| amounts[kind as usize].unwrap_or(0));
        let input = &mut amounts[Measured::Input as usize];
        *input = input.map(|all| all.saturating_sub(cached.saturating_add(written)));
    }
    let model = MODELS.iter().find_map(|name| text(name)).unwrap_or_default();
    // The costs of OpenAI are by line: the model and the kind.
    let model = model.split(", ").next().unwrap_or_default().to_owned();
    export.counted.push(ModelDay { day, model, amounts });
    Ok(())
}

/// Returns the cost of a line in nano-dollars. OpenAI gives dollars, Anthropic gives cents as text.
fn cost(get: &dyn Fn(&str) -> Option<Value>) -> Result<Option<u64>, String> {
    let amount = match get("amount") {
        Some(Value::Object(amount)) => {
            Some((amount.get("value").cloned(), 9, amount.get("currency").cloned()))
        }
        Some(amount) => Some((Some(amount), 7, get("currency"))),
        None => get("amount_value").map(|amount| (Some(amount), 9, get("amount_currency"))),
    };
    let Some((Some(amount), decimals, currency)) = amount else { return Ok(None) };
    let currency = currency.as_ref().and_then(Value::as_str).unwrap_or("usd");
    if !currency.eq_ignore_ascii_case("usd") {
        return Err(format!("amounts are in {currency}; weir counts dollars"));
    }
    let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    let (nano_usd, _) = scaled(&text, decimals).ok_or_else(|| format!("{text} is no amount"))?;
    Ok(Some(nano_usd))
}

/// Returns a count, which a table has as a text, perhaps with a fraction of zero.
fn count(value: &Value) -> Option<u64> {
    match value.as_str() {
        Some(text) => scaled(text, 0).map(|(count, _)| count),
        None => value.as_u64(),
    }
}

/// Returns the day of a time: seconds since 1970, or a date.
fn day(value: &Value) -> Option<u64> {
    let of_seconds = |seconds: u64| seconds.checked_mul(1000).map(|ms| ms / DAY_MS);
    match value.as_str() {
        Some(text) => read_day(text.get(..10)?).or_else(|| of_seconds(text.parse().ok()?)),
        None => of_seconds(value.as_u64()?),
    }
}

impl Export {
    fn cover(&mut self, day: u64) {
        let after = day.saturating_add(1);
        self.days = match self.days.is_empty() {
            true => day..after,
            false => self.days.start.min(day)..self.days.end.max(after),
        };
    }
}
