//! What goes into PostgreSQL's tables as lists, one a column: statements take them side by side. Asks
//! the server nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::super::ledger::added::{MAX_ADDED, Place, Sums, stored_sum};
use super::super::ledger::facts::{figures, moment};
use super::super::ledger::frame::{Ending, Facts};
use super::connection::Given;

/// Rows of requests, a list a column.
#[derive(Default)]
pub struct Requests<'a> {
    pub ids: Vec<&'a [u8]>,
    begun_ms: Vec<i64>,
    tenants: Vec<&'a [u8]>,
    /// A virtual key's id, its team, organisation and user.
    names: [Vec<Option<&'a str>>; 4],
    /// Route, model, upstream; outcome, action, zone.
    texts: [Vec<&'a str>; 6],
    streams: Vec<bool>,
    statuses: Vec<Option<i64>>,
    /// Received and sent tokens, and what was reported.
    figures: [Vec<Option<i64>>; 9],
    flags: Vec<i64>,
    /// Planning, the first byte, and all.
    times_ms: [Vec<Option<i64>>; 3],
}

impl<'a> Requests<'a> {
    pub fn new(settled: &[(&'a Facts<'_>, &'a Ending<'_>)]) -> Self {
        let mut rows = Self::default();
        for (facts, ending) in settled {
            let figure = |number: Option<u64>| number.map(moment);
            rows.ids.push(&facts.id.0);
            rows.begun_ms.push(moment(facts.begun_ms));
            rows.tenants.push(&facts.tenant);
            let names = facts.key.map_or([None; 4], |names| names.map(Some));
            push(&mut rows.names, names);
            let (route, model, upstream) = (facts.route, facts.model, facts.upstream);
            push(
                &mut rows.texts,
                [route, model, upstream, ending.outcome, facts.action, facts.zone],
            );
            rows.streams.push(facts.stream);
            rows.statuses.push(ending.status.map(i64::from));
            push(&mut rows.figures, figures(facts, ending));
            rows.flags.push(i64::from(ending.flags.0));
            let times = [facts.plan_ms, ending.first_byte_ms, ending.total_ms];
            push(&mut rows.times_ms, times.map(figure));
        }
        rows
    }

    /// In the order of [`REQUEST_COLUMNS`].
    pub fn given(&self) -> Vec<Given<'_>> {
        let [route, model, upstream, outcome, action, zone] = &self.texts;
        let mut given: Vec<Given<'_>> = vec![&self.ids, &self.begun_ms, &self.tenants];
        given.extend(self.names.iter().map(|names| names as Given<'_>));
        given.extend([route as Given<'_>, model, upstream, &self.streams, &self.statuses]);
        given.extend([outcome as Given<'_>, action, zone]);
        given.extend(self.figures.iter().map(|figures| figures as Given<'_>));
        given.push(&self.flags);
        given.extend(self.times_ms.iter().map(|times| times as Given<'_>));
        given
    }
}

fn push<T, const N: usize>(columns: &mut [Vec<T>; N], row: [T; N]) {
    for (column, value) in columns.iter_mut().zip(row) {
        column.push(value);
    }
}

/// Where requests are counted, a list a column.
#[derive(Default)]
pub struct Places<'a> {
    days: Vec<i64>,
    tenants: Vec<&'a [u8]>,
    /// Key, team, organisation, user and model.
    names: [Vec<&'a str>; 5],
}

impl<'a> Places<'a> {
    pub fn new(places: impl Iterator<Item = &'a Place<'a>>) -> Self {
        let mut columns = Self::default();
        for place in places {
            columns.days.push(place.day);
            columns.tenants.push(&place.tenant);
            let Place { key, team, organisation, user, model, .. } = place;
            push(&mut columns.names, [key, team, organisation, user, model].map(|it| &**it));
        }
        columns
    }

    pub fn given(&self) -> Vec<Given<'_>> {
        let mut given: Vec<Given<'_>> = vec![&self.days, &self.tenants];
        given.extend(self.names.iter().map(|names| names as Given<'_>));
        given
    }
}

/// What is added to each place, a list a column.
pub struct Totals<'a> {
    places: Places<'a>,
    /// In the order of `COUNTED` and `SUMMED`.
    figures: [Vec<i64>; 14],
}

impl<'a> Totals<'a> {
    pub fn new(added: &'a BTreeMap<Place<'a>, Sums>) -> Self {
        let mut figures: [Vec<i64>; 14] = Default::default();
        for sums in added.values() {
            let whole = sums.figures().map(stored_sum);
            for (column, figure) in figures.iter_mut().zip(whole) {
                column.push(figure);
            }
            figures[13].push(sums.saved_nano_usd.clamp(-MAX_ADDED, MAX_ADDED));
        }
        Self { places: Places::new(added.keys()), figures }
    }

    pub fn given(&self) -> Vec<Given<'_>> {
        let mut given = self.places.given();
        given.extend(self.figures.iter().map(|figures| figures as Given<'_>));
        given
    }
}

/// What answers of models took, a list a column.
#[derive(Default)]
pub struct Learned<'a> {
    models: Vec<&'a str>,
    answers: Vec<i64>,
    tokens: Vec<i64>,
}

impl<'a> Learned<'a> {
    pub fn new(outputs: &'a BTreeMap<Cow<'_, str>, (u64, u64)>) -> Self {
        let mut columns = Self::default();
        for (model, (answers, tokens)) in outputs {
            columns.models.push(model);
            columns.answers.push(stored_sum(*answers));
            columns.tokens.push(stored_sum(*tokens));
        }
        columns
    }

    pub fn given(&self) -> Vec<Given<'_>> {
        vec![&self.models, &self.answers, &self.tokens]
    }
}
