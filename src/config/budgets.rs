//! `[budgets]`: how budgets are held. How much may be spent is no configuration: `weir budgets` sets it.

use jiff::tz::TimeZone;

use super::OnFailure;
use super::reader::Reader;
use super::set;

const HOUR_MS: u64 = 60 * 60 * 1000;

/// `[budgets]`: how budgets are held.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Where hours, days, weeks and months begin.
    pub time_zone: TimeZone,
    /// Whether a request's output limit is lowered, or one is put, to what its budgets have left.
    pub clamp: bool,
    /// How long a request waits for others that hold what is left.
    pub wait_ms: u64,
    /// What becomes of requests while nobody can tell how a budget stands.
    pub on_failure: OnFailure,
    /// Where warnings are posted; empty for nowhere.
    pub webhook_url: String,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            time_zone: TimeZone::UTC,
            clamp: true,
            wait_ms: 30_000,
            on_failure: OnFailure::Open,
            webhook_url: String::new(),
        }
    }
}

/// Reads `[budgets]`.
pub(super) fn read(reader: &mut Reader, budgets: &mut Budgets) {
    set(&mut budgets.time_zone, reader.text(&["budgets", "time_zone"], time_zone));
    set(&mut budgets.clamp, reader.switch(&["budgets", "clamp"]));
    set(&mut budgets.wait_ms, reader.whole(&["budgets", "wait_ms"], 0..=HOUR_MS));
    let choices = [("open", OnFailure::Open), ("closed", OnFailure::Closed)];
    set(&mut budgets.on_failure, reader.choice(&["budgets", "on_failure"], &choices));
    let webhook = reader.text(&["budgets", "webhook_url"], |text| match text.trim() {
        "" => Ok(String::new()),
        text => webhook(text),
    });
    set(&mut budgets.webhook_url, webhook);
}

fn webhook(text: &str) -> Result<String, String> {
    let is_web = text.starts_with("https://") || text.starts_with("http://");
    match text.parse::<http::Uri>().is_ok_and(|uri| uri.host().is_some()) && is_web {
        true => Ok(text.to_owned()),
        // It may hold a secret.
        false => Err("is no address to post to; write it as https://HOST/PATH".to_owned()),
    }
}

fn time_zone(text: &str) -> Result<TimeZone, String> {
    TimeZone::get(text.trim()).map_err(|_| {
        format!(
            "{text:?} is no time zone; write a name of the IANA database, such as \"Europe/Berlin\""
        )
    })
}
