//! `[budgets]`: how budgets are enforced. The limits are not configuration: `weir budgets` sets
//! them.

use jiff::tz::TimeZone;

use super::reader::settings;
use super::{Clamp, OnFailure};

settings! {
    /// `[budgets]`: how budgets are enforced.
    #[derive(Debug, Clone)]
    Budgets from keys {
        /// Time zone for the start of hours, days, weeks and months.
        time_zone: TimeZone = keys.text("time_zone", time_zone),
        /// What is lowered so that budgets last.
        clamp: Clamp = keys.get("clamp"),
        /// How long a request waits for other requests that hold the remaining amount.
        wait_ms: u64 = keys.get("wait_ms"),
        /// Handling of requests while the state of a budget is unknown.
        on_failure: OnFailure = keys.get("on_failure"),
    }
}

fn time_zone(text: &str) -> Result<TimeZone, String> {
    TimeZone::get(text.trim()).map_err(|_| {
        format!("{text:?} is not a time zone; write an IANA name, such as \"Europe/Berlin\"")
    })
}
