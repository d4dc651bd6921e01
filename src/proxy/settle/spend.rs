//! A caller's own usage, shown to that caller only. Reads the journal.

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::proxy::admit::caller::Caller;
use crate::proxy::error::{ErrorKind, ErrorSource, ProxyError};
use crate::proxy::hold::account;
use crate::proxy::hold::budgets::Budgets;
use weir_store::budget::calendar::{read_day, read_month, shown_day};
use weir_store::counters::BudgetStatus;
use weir_store::ledger::{Column, Filter, UsageQuery};
use weir_store::{Store, StoreError, Tenant};

/// Maximum number of rows in one answer.
const MAX_ROWS: usize = 1000;

/// Parameters of a usage request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendQuery {
    by: Vec<Column>,
    from_day: Option<u64>,
    until_day: Option<u64>,
    only: Filter,
    is_of_team: bool,
}

impl SpendQuery {
    /// Parses a URL's query: `by`, `since`, `until`, `month`, `model`, `conversation`,
    /// `agent`, `class`, `scope`.
    pub fn read(query: &str) -> Result<Self, ProxyError> {
        let url = reqwest::Url::parse(&format!("http://localhost/?{query}"))
            .map_err(|_| bad_parameter("", "the query cannot be read"))?;
        let parameters = url.query_pairs().map(|(name, value)| (name, value.into_owned()));
        let mut query = Self {
            by: vec![Column::Model],
            from_day: None,
            until_day: None,
            only: Filter::default(),
            is_of_team: false,
        };
        for (name, value) in parameters {
            let wrong = |wanted: &str| bad_parameter(&name, wanted);
            match &*name {
                "by" => query.by = Column::read_list(&value).map_err(|said| wrong(&said))?,
                "since" => {
                    let day = read_day(&value).ok_or_else(|| wrong("write a day: 2026-01-31"))?;
                    query.from_day = Some(day);
                }
                "until" => {
                    let day = read_day(&value).ok_or_else(|| wrong("write a day: 2026-01-31"))?;
                    query.until_day = Some(day + 1);
                }
                "month" => {
                    let month = read_month(&value);
                    let (from, until) = month.ok_or_else(|| wrong("write a month: 2026-01"))?;
                    (query.from_day, query.until_day) = (Some(from), Some(until));
                }
                "model" => query.only.model = Some(value),
                "conversation" => query.only.conversation = Some(value),
                "agent" => query.only.agent = Some(value),
                "class" => query.only.class = Some(value),
                "tag" => query.only.tag = Some(value),
                "scope" if value == "key" => query.is_of_team = false,
                "scope" if value == "team" => query.is_of_team = true,
                "scope" => return Err(wrong("write key or team")),
                _ => {
                    return Err(wrong(
                        "the parameters are by, since, until, month, model, conversation, agent, \
                         class, tag, scope",
                    ));
                }
            }
        }
        Ok(query)
    }
}

fn bad_parameter(name: &str, wanted: &str) -> ProxyError {
    let name: String = name.chars().take(64).collect();
    ProxyError {
        param: Some(name.clone()),
        ..ProxyError::new(ErrorKind::InvalidRequest, format!("the parameter '{name}': {wanted}"))
    }
}

/// Returns the usage of `caller`: its key, or its whole team; without keys, its credential. Days are those
/// of `zone`.
pub async fn usage(
    store: &Store,
    zone: &TimeZone,
    caller: &Caller,
    query: SpendQuery,
) -> Result<Value, ProxyError> {
    if caller.tenant == Tenant::ANONYMOUS {
        return Err(ProxyError::new(
            ErrorKind::CredentialRequired,
            "Usage is per caller. \
             Send the API key that you use for your requests.",
        ));
    }
    let own_key = caller.key.as_ref().filter(|_| !query.is_of_team);
    let asked = UsageQuery {
        by: query.by.clone(),
        from_day: query.from_day,
        until_day: query.until_day,
        zone: Some(zone.clone()),
        only: Filter {
            tenant: Some(caller.tenant),
            key: own_key.map(|key| key.id.clone()),
            ..query.only
        },
        limit: Some(MAX_ROWS),
    };
    let total = UsageQuery { by: Vec::new(), ..asked.clone() };
    let rows = store.usage(asked).await.map_err(unread)?;
    let total = store.usage(total).await.map_err(unread)?;
    Ok(json!({
        "object": "weir.usage",
        "since": query.from_day.map(shown_day),
        "until": query.until_day.map(|day| shown_day(day - 1)),
        "is_complete": rows.len() < MAX_ROWS,
        "total": total.first().map(|row| row.json(&[])),
        "data": rows.iter().map(|row| row.json(&query.by)).collect::<Vec<_>>(),
    }))
}

/// Returns the state of the budgets that apply to `caller`'s requests.
pub async fn statuses(budgets: &Budgets, caller: &Caller) -> Result<Value, ProxyError> {
    if caller.tenant == Tenant::ANONYMOUS {
        return Err(ProxyError::new(
            ErrorKind::CredentialRequired,
            "Budgets are per caller. Send the API key that you use for your requests.",
        ));
    }
    let account = account::account(caller);
    let statuses = budgets.statuses(&account).await.map_err(unread)?;
    let data: Vec<Value> = statuses.iter().map(BudgetStatus::json).collect();
    Ok(json!({"object": "list", "data": data}))
}

fn unread(error: StoreError) -> ProxyError {
    tracing::warn!(target: "weir::store", %error, "the store cannot be read");
    let message = "weir cannot read its store at the moment. Try again shortly.";
    let reason = Some(ErrorSource::Store(error).into());
    ProxyError { reason, ..ProxyError::new(ErrorKind::StoreUnavailable, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_and_others_refused() {
        let query = SpendQuery::read("by=day%2Cmodel&month=2026-11&scope=team");
        let query = query.expect("it is sound");
        assert_eq!(query.by, [Column::Day, Column::Model]);
        assert_eq!(query.until_day.zip(query.from_day).map(|(end, start)| end - start), Some(30));
        assert!(query.is_of_team);
        for (wrong, name) in [
            ("by=week", "by"),
            ("since=x", "since"),
            ("month=2026", "month"),
            ("scope=all", "scope"),
            ("x", "x"),
        ] {
            let error = SpendQuery::read(wrong).expect_err("it is wrong");
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }
}
