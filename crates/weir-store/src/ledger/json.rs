//! JSON rows of usage and requests, under the names that callers and scripts rely on. Money is
//! decimal text in dollars, so that readers do not round it; unknown values are null.

use serde_json::{Map, Value, json};

use super::query::{COUNT_COLUMNS, SUM_COLUMNS};
use super::{Column, RequestRow, UsageRow};
use crate::budget::NanoUsd;
use crate::budget::calendar::shown_day;
use crate::secret::hex;

impl Column {
    /// All columns with their names.
    pub const NAMES: [(&'static str, Self); 12] = [
        ("day", Self::Day),
        ("organisation", Self::Organisation),
        ("team", Self::Team),
        ("key", Self::Key),
        ("user", Self::User),
        ("model", Self::Model),
        ("tenant", Self::Tenant),
        ("conversation", Self::Conversation),
        ("agent", Self::Agent),
        ("parent", Self::Parent),
        ("class", Self::Class),
        ("tag", Self::Tag),
    ];

    /// Returns the column's name.
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, column)| *column == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns the column of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, column)| *column)
    }

    /// Parses a comma-separated list of names.
    pub fn read_list(text: &str) -> Result<Vec<Self>, String> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut columns = Vec::new();
        for word in words {
            let Some(column) = Self::named(word) else {
                let names = Self::NAMES.map(|(name, _)| name).join(", ");
                return Err(format!("usage is grouped by {names}"));
            };
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        Ok(columns)
    }
}

impl UsageRow {
    /// Formats the row's value of `column`; empty if the row is not grouped by it.
    pub fn shown(&self, column: Column) -> String {
        match column {
            Column::Day => self.day.map(shown_day).unwrap_or_default(),
            Column::Tenant => self.tenant.map(|tenant| hex(&tenant.0)).unwrap_or_default(),
            other => self.name(other).unwrap_or_default().to_owned(),
        }
    }

    /// Returns the figures by name, in display order.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let totals = &self.totals;
        let money = [
            ("cost_usd", usd(totals.cost_nano_usd)),
            ("saved_usd", signed_usd(totals.saved_nano_usd)),
            ("planned_saved_usd", signed_usd(totals.planned_saved_nano_usd)),
        ];
        let names = COUNT_COLUMNS.into_iter().chain(SUM_COLUMNS);
        let counts = names.take_while(|name| !name.ends_with("_usd")).zip(totals.figures());
        counts.map(|(name, count)| (name, count.to_string())).chain(money)
    }

    /// Formats the row, grouped `by` these columns.
    pub fn json(&self, by: &[Column]) -> Value {
        let mut row = Map::new();
        for column in by {
            row.insert(column.name().to_owned(), Value::from(self.shown(*column)));
        }
        for (name, figure) in self.figures() {
            let is_money = name.ends_with("_usd");
            let value = match figure.parse::<u64>() {
                Ok(number) if !is_money => Value::from(number),
                _ => Value::from(figure),
            };
            row.insert(name.to_owned(), value);
        }
        Value::Object(row)
    }
}

impl RequestRow {
    /// Formats the row.
    pub fn json(&self) -> Value {
        let key = self.caller.key.as_ref();
        let ended = &self.settlement;
        json!({
            "id": self.id.to_string(),
            "begun_ms": self.begun_ms,
            "tenant": hex(&self.caller.tenant.0),
            "key": key.map(|key| &key.key),
            "team": key.map(|key| &key.team),
            "organisation": key.map(|key| &key.organisation),
            "user": key.map(|key| &key.user),
            "route": self.route,
            "model": self.model,
            "upstream": self.upstream,
            "conversation": self.attribution.conversation,
            "agent": self.attribution.agent,
            "parent": self.attribution.parent,
            "class": self.attribution.class,
            "tag": self.attribution.tag,
            "stream": self.stream,
            "status": ended.status,
            "outcome": ended.outcome,
            "flags": ended.flags.names().collect::<Vec<_>>(),
            "action": self.action,
            "zone": self.zone,
            "received_tokens": self.received_tokens,
            "sent_tokens": self.sent_tokens,
            "prompt_tokens": ended.prompt_tokens,
            "completion_tokens": ended.completion_tokens,
            "cached_tokens": ended.cached_tokens,
            "cache_write_tokens": ended.cache_write_tokens,
            "reasoning_tokens": ended.reasoning_tokens,
            "cost_usd": ended.cost_nano_usd.map(usd),
            "saved_usd": ended.saved_nano_usd.map(signed_usd),
            "planned_saved_usd": ended.planned_saved_nano_usd.map(signed_usd),
            "plan_ms": self.plan_ms,
            "first_byte_ms": ended.first_byte_ms,
            "total_ms": ended.total_ms,
        })
    }
}

fn usd(nano_usd: u64) -> String {
    NanoUsd(nano_usd).to_decimal()
}

/// Formats an amount in dollars with its sign.
pub fn signed_usd(nano_usd: i64) -> String {
    let sign = if nano_usd < 0 { "-" } else { "" };
    format!("{sign}{}", usd(nano_usd.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::super::Totals;
    use super::*;

    #[test]
    fn money_is_text_and_tokens_are_numbers() {
        let totals = Totals {
            requests: 2,
            prompt_tokens: 1000,
            cost_nano_usd: 1_234_567,
            saved_nano_usd: -5_000_000_001,
            ..Totals::default()
        };
        let row = UsageRow {
            day: Some(20_779),
            names: vec![(Column::Model, "m".into())],
            totals,
            ..UsageRow::default()
        };
        let json = row.json(&[Column::Model, Column::Day]);
        assert_eq!(json["day"], "2026-11-22");
        assert_eq!(json["model"], "m");
        assert_eq!(json["prompt_tokens"], 1000);
        assert_eq!(json["cost_usd"], "0.001234567");
        assert_eq!(json["saved_usd"], "-5.000000001");
        assert_eq!(json.get("key"), None);
    }

    #[test]
    fn columns_are_read_by_name() {
        assert_eq!(Column::read_list("model, day,model"), Ok(vec![Column::Model, Column::Day]));
        assert_eq!(Column::read_list(""), Ok(Vec::new()));
        assert!(Column::read_list("week").expect_err("no such").contains("model"));
    }
}
