//! Usage as a table of cost by FOCUS (FinOps Open Cost and Usage Specification, 1.2): one row for each day, model,
//! team and key, with the columns that the specification requires and those that weir has figures for.

use super::usage::csv;
use weir_store::budget::NanoUsd;
use weir_store::budget::calendar::{read_month, shown_day};
use weir_store::ledger::{Column, UsageRow};

/// Columns that rows are grouped by.
pub(super) const BY: [Column; 4] = [Column::Day, Column::Model, Column::Team, Column::Key];

/// Formats rows as comma-separated values.
pub(super) fn table(rows: &[UsageRow]) -> String {
    let head = cells(&UsageRow::default()).map(|(name, _)| name.to_owned());
    let lines = rows.iter().map(|row| cells(row).map(|(_, cell)| cell));
    csv(std::iter::once(head).chain(lines).map(Vec::from))
}

/// Returns a row's cells with the names of their columns.
fn cells(row: &UsageRow) -> [(&'static str, String); 25] {
    let day = row.day.unwrap_or(0);
    let midnight = |day: u64| format!("{}T00:00:00Z", shown_day(day));
    let month = read_month(&shown_day(day)[..7]).unwrap_or((day, day + 1));
    let [model, team, key] =
        [Column::Model, Column::Team, Column::Key].map(|column| row.shown(column));
    let totals = &row.totals;
    let cost = NanoUsd(totals.cost_nano_usd).to_decimal();
    let tokens = totals.prompt_tokens.saturating_add(totals.completion_tokens);
    let weir = || "weir".to_owned();
    [
        ("BilledCost", cost.clone()),
        ("BillingAccountId", weir()),
        ("BillingAccountName", weir()),
        ("BillingCurrency", "USD".to_owned()),
        ("BillingPeriodEnd", midnight(month.1)),
        ("BillingPeriodStart", midnight(month.0)),
        ("ChargeCategory", "Usage".to_owned()),
        ("ChargeClass", String::new()),
        ("ChargeDescription", format!("{} requests to {model}", totals.requests)),
        ("ChargePeriodEnd", midnight(day + 1)),
        ("ChargePeriodStart", midnight(day)),
        ("ConsumedQuantity", tokens.to_string()),
        ("ConsumedUnit", "Tokens".to_owned()),
        ("ContractedCost", cost.clone()),
        ("EffectiveCost", cost.clone()),
        ("InvoiceIssuerName", weir()),
        ("ListCost", cost),
        ("ProviderName", weir()),
        ("PublisherName", weir()),
        ("ResourceId", key),
        ("ServiceCategory", "AI and Machine Learning".to_owned()),
        ("ServiceName", "Large language models".to_owned()),
        ("SkuId", model),
        ("SubAccountId", team.clone()),
        ("SubAccountName", team),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_store::budget::calendar::read_day;
    use weir_store::ledger::Totals;

    #[test]
    fn a_row_has_a_value_for_each_column() {
        let totals = Totals {
            requests: 2,
            prompt_tokens: 900,
            completion_tokens: 100,
            cost_nano_usd: 1_500_000_000,
            ..Totals::default()
        };
        let row = UsageRow {
            day: read_day("2026-11-30"),
            names: vec![
                (Column::Model, "gpt-4o".to_owned()),
                (Column::Team, "red".to_owned()),
                (Column::Key, "key_1".to_owned()),
            ],
            totals,
            ..UsageRow::default()
        };
        let table = table(&[row]);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!((lines.len(), lines[1].len()), (2, 25));
        let cell = |name: &str| {
            let place = lines[0].iter().position(|own| *own == name).expect("a column");
            lines[1][place]
        };
        for (name, expected) in [
            ("BilledCost", "1.50"),
            ("BillingPeriodStart", "2026-11-01T00:00:00Z"),
            ("BillingPeriodEnd", "2026-12-01T00:00:00Z"),
            ("ChargePeriodEnd", "2026-12-01T00:00:00Z"),
            ("ConsumedQuantity", "1000"),
            ("SkuId", "gpt-4o"),
            ("SubAccountId", "red"),
            ("ResourceId", "key_1"),
        ] {
            assert_eq!(cell(name), expected, "{name}");
        }
    }
}
