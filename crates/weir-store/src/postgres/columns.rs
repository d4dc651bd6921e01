//! Column arrays for PostgreSQL: statements take one list per column. No I/O.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::super::ledger::codec::{figures, stored_ms};
use super::super::ledger::rollup::{MAX_ADDITION, Totals, UsageKey, stored_total};
use super::super::ledger::text::signed_figure;
use super::super::wal::record::{IntentRecord, SettlementRecord};
use super::connection::Param;

/// Rows of requests, one list per column.
#[derive(Default)]
pub(super) struct RequestColumns<'a> {
    pub ids: Vec<&'a [u8]>,
    begun_ms: Vec<i64>,
    tenants: Vec<&'a [u8]>,
    /// A virtual key's id, team, organisation and user.
    names: [Vec<Option<&'a str>>; 4],
    /// Route, model, upstream; outcome, action, zone.
    texts: [Vec<&'a str>; 6],
    streams: Vec<bool>,
    statuses: Vec<Option<i64>>,
    /// Received and sent tokens, and reported usage.
    figures: [Vec<Option<i64>>; 9],
    flags: Vec<i64>,
    /// Planning, first byte, and total.
    times_ms: [Vec<Option<i64>>; 3],
    /// Conversation, agent, parent and class.
    labels: [Vec<Option<&'a str>>; 4],
    planned_saved: Vec<Option<i64>>,
}

impl<'a> RequestColumns<'a> {
    pub(super) fn new(settled: &[(&'a IntentRecord<'_>, &'a SettlementRecord<'_>)]) -> Self {
        let mut rows = Self::default();
        for (intent, settlement) in settled {
            let figure = |number: Option<u64>| number.map(stored_ms);
            rows.ids.push(&intent.id.0);
            rows.begun_ms.push(stored_ms(intent.begun_ms));
            rows.tenants.push(&intent.tenant);
            let names = intent.key.map_or([None; 4], |names| names.map(Some));
            push(&mut rows.names, names);
            let (route, model, upstream) = (intent.route, intent.model, intent.upstream);
            push(
                &mut rows.texts,
                [route, model, upstream, settlement.outcome, intent.action, intent.zone],
            );
            rows.streams.push(intent.stream);
            rows.statuses.push(settlement.status.map(i64::from));
            push(&mut rows.figures, figures(intent, settlement));
            rows.flags.push(i64::from(settlement.flags.0));
            let times = [intent.plan_ms, settlement.first_byte_ms, settlement.total_ms];
            push(&mut rows.times_ms, times.map(figure));
            push(&mut rows.labels, intent.labels);
            rows.planned_saved.push(signed_figure(settlement.planned_saved_nano_usd));
        }
        rows
    }

    /// Returns the lists in the order of [`REQUEST_COLUMNS`].
    pub(super) fn params(&self) -> Vec<Param<'_>> {
        let [route, model, upstream, outcome, action, zone] = &self.texts;
        let mut params: Vec<Param<'_>> = vec![&self.ids, &self.begun_ms, &self.tenants];
        params.extend(self.names.iter().map(|names| names as Param<'_>));
        params.extend([route as Param<'_>, model, upstream, &self.streams, &self.statuses]);
        params.extend([outcome as Param<'_>, action, zone]);
        params.extend(self.figures.iter().map(|figures| figures as Param<'_>));
        params.push(&self.flags);
        params.extend(self.times_ms.iter().map(|times| times as Param<'_>));
        params.extend(self.labels.iter().map(|labels| labels as Param<'_>));
        params.push(&self.planned_saved);
        params
    }
}

fn push<T, const N: usize>(columns: &mut [Vec<T>; N], row: [T; N]) {
    for (column, value) in columns.iter_mut().zip(row) {
        column.push(value);
    }
}

/// Rows of daily usage in which requests count, one list per column.
#[derive(Default)]
pub(super) struct UsageKeyColumns<'a> {
    days: Vec<i64>,
    tenants: Vec<&'a [u8]>,
    /// Key, team, organisation, user and model.
    names: [Vec<&'a str>; 5],
}

impl<'a> UsageKeyColumns<'a> {
    pub(super) fn new(keys: impl Iterator<Item = &'a UsageKey<'a>>) -> Self {
        let mut columns = Self::default();
        for key in keys {
            columns.days.push(key.day);
            columns.tenants.push(&key.tenant);
            let UsageKey { key, team, organisation, user, model, .. } = key;
            push(&mut columns.names, [key, team, organisation, user, model].map(|it| &**it));
        }
        columns
    }

    pub(super) fn params(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = vec![&self.days, &self.tenants];
        params.extend(self.names.iter().map(|names| names as Param<'_>));
        params
    }
}

/// Additions to each of those rows, one list per column.
pub(super) struct TotalsColumns<'a> {
    keys: UsageKeyColumns<'a>,
    /// In the order of `COUNTED` and `SUMMED`.
    figures: [Vec<i64>; 15],
}

impl<'a> TotalsColumns<'a> {
    pub(super) fn new(usage: &'a BTreeMap<UsageKey<'a>, Totals>) -> Self {
        let mut figures: [Vec<i64>; 15] = Default::default();
        for totals in usage.values() {
            let whole = totals.figures().map(stored_total);
            for (column, figure) in figures.iter_mut().zip(whole) {
                column.push(figure);
            }
            let signed = [totals.saved_nano_usd, totals.planned_saved_nano_usd];
            for (column, figure) in figures[13..].iter_mut().zip(signed) {
                column.push(figure.clamp(-MAX_ADDITION, MAX_ADDITION));
            }
        }
        Self { keys: UsageKeyColumns::new(usage.keys()), figures }
    }

    pub(super) fn params(&self) -> Vec<Param<'_>> {
        let mut params = self.keys.params();
        params.extend(self.figures.iter().map(|figures| figures as Param<'_>));
        params
    }
}

/// Output sizes by model, one list per column.
#[derive(Default)]
pub(super) struct OutputColumns<'a> {
    models: Vec<&'a str>,
    answers: Vec<i64>,
    tokens: Vec<i64>,
}

impl<'a> OutputColumns<'a> {
    pub(super) fn new(outputs: &'a BTreeMap<Cow<'_, str>, (u64, u64)>) -> Self {
        let mut columns = Self::default();
        for (model, (answers, tokens)) in outputs {
            columns.models.push(model);
            columns.answers.push(stored_total(*answers));
            columns.tokens.push(stored_total(*tokens));
        }
        columns
    }

    pub(super) fn params(&self) -> Vec<Param<'_>> {
        vec![&self.models, &self.answers, &self.tokens]
    }
}
