//! `[budgets]`: how budgets are enforced. The limits are not configuration: `weir budgets` sets
//! them.

use jiff::tz::TimeZone;

use super::OnFailure;
use super::keys::BUDGETS;
use super::reader::Reader;

/// `[budgets]`: how budgets are enforced.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Time zone for the start of hours, days, weeks and months.
    pub time_zone: TimeZone,
    /// Whether a request's output limit is lowered, or added, to fit the rest of its budgets.
    pub clamp: bool,
    /// How long a request waits for other requests that hold the remaining amount.
    pub wait_ms: u64,
    /// Handling of requests while the state of a budget is unknown.
    pub on_failure: OnFailure,
}

/// Reads `[budgets]`.
pub(super) fn read(reader: &mut Reader) -> Budgets {
    let mut keys = reader.section(&BUDGETS);
    Budgets {
        time_zone: keys.text("time_zone", time_zone),
        clamp: keys.get("clamp"),
        wait_ms: keys.get("wait_ms"),
        on_failure: keys.get("on_failure"),
    }
}

fn time_zone(text: &str) -> Result<TimeZone, String> {
    TimeZone::get(text.trim()).map_err(|_| {
        format!("{text:?} is not a time zone; write an IANA name, such as \"Europe/Berlin\"")
    })
}
