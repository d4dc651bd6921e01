//! Figures of all conversations together: what they cost, at which limit they would have cost least, by model
//! and by project.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::habits::Habits;
use super::{Finding, TrialLimit, Unbilled};

/// Share of the values used again that a limit must keep to be the best, in percent.
pub(super) const LEAST_KEPT_PERCENT: u64 = 95;

/// What all conversations cost, and would have cost.
#[derive(Debug, Default, Serialize)]
pub struct Savings {
    pub conversations: u64,
    pub requests: u64,
    /// Requests whose usage is the provider's own report.
    pub reported_requests: u64,
    pub prompt_tokens: u64,
    pub largest_prompt_tokens: u64,
    pub first_ms: Option<u64>,
    pub last_ms: Option<u64>,
    /// Cost as it was, in nano-dollars.
    pub nano_usd: u64,
    /// Values that answers used again, and that were last seen more than four messages back.
    pub values: u64,
    /// Limits that were tried, the highest first.
    pub limits: Vec<At>,
    /// Whether they were chosen to find the best.
    #[serde(skip)]
    pub(super) is_search: bool,
    /// The limit with the lowest cost of those that lose few values and refuse no request.
    pub best: Option<At>,
    /// The limit of the groups' costs: the best, also of those that were asked for, or the only one.
    #[serde(skip)]
    pub(super) grouped: Option<At>,
    pub habits: Habits,
    pub models: Vec<Group>,
    pub projects: Vec<Group>,
    /// Conversations that no model is named for.
    pub unnamed: u64,
    /// Conversations left out by the model whose price is not known.
    pub unpriced: BTreeMap<String, u64>,
    /// Conversations that cannot be read, with the reason.
    pub broken: Vec<String>,
}

/// All conversations under one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct At {
    /// `None` for a limit by price.
    pub limit_tokens: Option<u64>,
    /// Its name, such as `economic`; `None` for a number of tokens.
    pub limit: Option<&'static str>,
    pub nano_usd: u64,
    pub kept_values: u64,
    pub shortened_requests: u64,
    /// Requests that nothing can make fit.
    pub unfit_requests: u64,
    /// Conversations that cost more than without it, and by how much the worst of them, in thousandths.
    pub dearer_conversations: u64,
    pub most_dearer_permille: u64,
}

/// The requests to one model or of one project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    pub name: String,
    pub requests: u64,
    pub nano_usd: u64,
    /// Cost at the best limit, or at the only one; `None` without any.
    pub limited_nano_usd: Option<u64>,
}

impl Savings {
    /// Sums up the findings at the limits. `is_search` if they were chosen to find the best.
    pub fn new(
        findings: Vec<Result<Finding, Unbilled>>,
        tried: &[TrialLimit],
        is_search: bool,
    ) -> Self {
        let mut own = Self { is_search, ..Self::default() };
        let mut all = Vec::with_capacity(findings.len());
        for finding in findings {
            match finding {
                Ok(finding) => all.push(finding),
                Err(Unbilled::Broken(error)) => own.broken.push(error),
                Err(Unbilled::Unnamed) => own.unnamed += 1,
                Err(Unbilled::Unpriced(model)) => *own.unpriced.entry(model).or_default() += 1,
            }
        }
        all.iter().for_each(|finding| own.add(finding));
        let at = tried.iter().enumerate().map(|(place, limit)| own.at(place, *limit, &all));
        let at: Vec<At> = at.collect();
        let best = own.best(&at);
        own.best = best.filter(|_| is_search);
        own.grouped = best.or_else(|| at.first().filter(|_| at.len() == 1).copied());
        let place = own.grouped.and_then(|chosen| at.iter().position(|at| *at == chosen));
        own.group(&all, place);
        own.limits = at;
        own.limits.sort_by_key(|at| std::cmp::Reverse(at.limit_tokens));
        own
    }

    fn add(&mut self, finding: &Finding) {
        self.conversations += 1;
        self.requests += finding.requests;
        self.reported_requests += finding.reported_requests;
        self.prompt_tokens = self.prompt_tokens.saturating_add(finding.prompt_tokens);
        self.largest_prompt_tokens = self.largest_prompt_tokens.max(finding.largest_prompt_tokens);
        let costs = finding.models.iter().map(|own| own.nano_usd);
        self.nano_usd = costs.fold(self.nano_usd, u64::saturating_add);
        self.values += finding.values;
        self.habits.merge(&finding.habits);
        if let Some(Range { start, end }) = finding.span_ms.clone() {
            self.first_ms = Some(self.first_ms.map_or(start, |own| own.min(start)));
            self.last_ms = self.last_ms.max(Some(end));
        }
    }

    /// Returns the figures at the limit of this place.
    fn at(&self, place: usize, tried: TrialLimit, all: &[Finding]) -> At {
        let (limit_tokens, limit) = (tried.tokens(), tried.word());
        let mut at = At { limit_tokens, limit, kept_values: self.values, ..At::default() };
        for finding in all {
            let limited = finding.limits[place];
            at.kept_values = at.kept_values.saturating_sub(limited.lost_values);
            at.shortened_requests += limited.shortened_requests;
            at.unfit_requests += limited.unfit_requests;
            let costs = finding.models.iter().map(|own| own.limits_nano_usd[place]);
            let limited = costs.fold(0, u64::saturating_add);
            at.nano_usd = at.nano_usd.saturating_add(limited);
            let was = finding.models.iter().map(|own| own.nano_usd).fold(0, u64::saturating_add);
            let more = u128::from(limited.saturating_sub(was)) * 1000 / u128::from(was.max(1));
            at.dearer_conversations += u64::from(limited > was);
            at.most_dearer_permille =
                at.most_dearer_permille.max(u64::try_from(more).unwrap_or(u64::MAX));
        }
        at
    }

    /// Returns the limit at which the least is spent, if it saves something, refuses nothing and keeps nearly
    /// all values.
    fn best(&self, all: &[At]) -> Option<At> {
        let keeps = |at: &&At| at.kept_values * 100 >= self.values * LEAST_KEPT_PERCENT;
        let good = all.iter().filter(|at| self.saves(at)).filter(keeps);
        good.min_by_key(|at| (at.nano_usd, at.limit_tokens)).copied()
    }

    /// Whether a limit that was planned saves something and refuses nothing.
    fn saves(&self, at: &At) -> bool {
        at.unfit_requests == 0
            && at.nano_usd < self.nano_usd
            && at.limit != TrialLimit::Optimum.word()
    }

    /// Returns the limit that keeps the most values of those that save something.
    pub(super) fn most_kept(&self) -> Option<&At> {
        let saving = self.limits.iter().filter(|at| self.saves(at));
        saving.max_by_key(|at| (at.kept_values, std::cmp::Reverse(at.nano_usd)))
    }

    /// Sums up by model and by project, at the limit of this place.
    fn group(&mut self, all: &[Finding], place: Option<usize>) {
        let (mut models, mut projects) = (BTreeMap::new(), BTreeMap::new());
        for finding in all {
            for own in &finding.models {
                let limited = place.map(|place| own.limits_nano_usd[place]);
                let add = |groups: &mut BTreeMap<String, Group>, name: &str| {
                    let group = groups.entry(name.to_owned()).or_default();
                    group.requests += own.requests;
                    group.nano_usd = group.nano_usd.saturating_add(own.nano_usd);
                    let more =
                        limited.map(|own| own.saturating_add(group.limited_nano_usd.unwrap_or(0)));
                    group.limited_nano_usd = more;
                };
                add(&mut models, &own.model);
                add(&mut projects, finding.project.as_deref().unwrap_or("(no project)"));
            }
        }
        let sorted = |groups: BTreeMap<String, Group>| {
            let named = groups.into_iter().map(|(name, own)| Group { name, ..own });
            let mut groups: Vec<Group> = named.collect();
            groups.sort_by_key(|own| std::cmp::Reverse(own.nano_usd));
            groups
        };
        (self.models, self.projects) = (sorted(models), sorted(projects));
    }

    /// Renders all figures as JSON on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("names and numbers alone") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::savings::{Limited, ModelCost};
    use weir_engine::compact::policy::Goal;

    const LIMITS: [TrialLimit; 4] = [
        TrialLimit::Goal(Goal::Tokens(16_000)),
        TrialLimit::Goal(Goal::Tokens(32_000)),
        TrialLimit::Goal(Goal::Tokens(64_000)),
        TrialLimit::Goal(Goal::Tokens(128_000)),
    ];

    /// Finding with these costs at the limits, losses and requests that cannot fit.
    fn finding(costs: [u64; 4], lost: [u64; 4], unfit: [u64; 4]) -> Finding {
        let limits = lost.into_iter().zip(unfit).map(|(lost_values, unfit_requests)| Limited {
            lost_values,
            unfit_requests,
            shortened_requests: 1,
        });
        Finding {
            project: None,
            requests: 10,
            reported_requests: 10,
            prompt_tokens: 1_000_000,
            largest_prompt_tokens: 100_000,
            span_ms: Some(0..86_400_000),
            models: vec![ModelCost {
                model: "m".to_owned(),
                requests: 10,
                nano_usd: 4_000_000_000,
                limits_nano_usd: costs.to_vec(),
            }],
            values: 100,
            limits: limits.collect(),
            habits: Habits::default(),
        }
    }

    #[test]
    fn the_best_limit_is_the_cheapest_that_keeps_nearly_all() {
        const CHEAPER: [u64; 4] = [1_000_000_000, 2_000_000_000, 3_000_000_000, 4_000_000_000];
        for (costs, lost, unfit, best) in [
            (CHEAPER, [0; 4], [0; 4], Some(16_000)),
            (CHEAPER, [6, 5, 0, 0], [0; 4], Some(32_000)),
            (CHEAPER, [0; 4], [1, 1, 0, 0], Some(64_000)),
            (CHEAPER, [6, 6, 6, 0], [0; 4], None),
            ([5_000_000_000; 4], [0; 4], [0; 4], None),
        ] {
            let findings = vec![Ok(finding(costs, lost, unfit))];
            let own = Savings::new(findings, &LIMITS, true);
            assert_eq!(
                own.best.and_then(|at| at.limit_tokens),
                best,
                "{costs:?} {lost:?} {unfit:?}"
            );
        }
        let none = Savings::new(vec![Ok(finding(CHEAPER, [8, 6, 7, 0], [0; 4]))], &LIMITS, true);
        let text = none.text();
        let line = "\nNo tried limit keeps 95 % of the values; 32k keeps 94 of 100.\n";
        assert!(text.contains(line) && none.grouped.is_none(), "{text}");
        let asked = Savings::new(vec![Ok(finding(CHEAPER, [0; 4], [0; 4]))], &LIMITS, false);
        assert_eq!(asked.grouped.and_then(|at| at.limit_tokens), Some(16_000));
        assert_eq!((asked.best, asked.limits.len()), (None, 4));
    }

    #[test]
    fn the_figures_stand_in_lines_of_eighty_columns() {
        let habit = crate::savings::Habit { count: 1_000, nano_usd: 2_500_000_000 };
        let mut other = finding([1_000_000_000; 4], [7, 2, 0, 0], [3, 0, 0, 0]);
        other.project = Some("/a/very/long/path/to/a/folder/with/a/project".to_owned());
        other.models[0].model = "n".to_owned();
        other.habits = Habits { cold_caches: habit, price_steps: habit, ..Habits::default() };
        let first = finding([2_000_000_000; 4], [1; 4], [0; 4]);
        let findings = vec![Ok(first), Ok(other), Err(Unbilled::Unnamed)];
        let own = Savings::new(findings, &LIMITS, true);
        let expected = "\
2 conversations, 20 requests, 2,000,000 prompt tokens, 1970-01-01 to 1970-01-02
Usage is as the providers reported it.

                        cost   saved
as it was              $8.00
limit 64k              $3.00    62 %  of 200 values used again, 199 stay
best: 32k              $3.00    62 %  of 200 values used again, 197 stay
limit 16k              $3.00    62 %  of 200 values used again, 192 stay
                                      3 requests cannot fit, billed whole

What costs most (one may be part of another):
       $2.50  1,000 requests after a pause longer than the cache's lifetime
       $2.50  1,000 requests above a size from which tokens cost more

by model                            requests   as it was      at 32k
m                                         10       $4.00       $2.00
n                                         10       $4.00       $1.00

by project                          requests   as it was      at 32k
(no project)                              10       $4.00       $2.00
…/path/to/a/folder/with/a/project         10       $4.00       $1.00
";
        assert_eq!(own.text(), expected);
        let refused = finding([1_000_000_000; 4], [0; 4], [1; 4]);
        let mut other = refused.clone();
        other.models[0].model = "n".to_owned();
        let text = Savings::new(vec![Ok(refused), Ok(other)], &LIMITS, true).text();
        let head = "\nby model                            requests   as it was\n";
        assert!(text.contains(head), "no limit is shown if none is the best: {text}");
        assert!(own.text().lines().all(|line| line.chars().count() <= 80));
        assert_eq!(
            own.left_out(),
            "Left out: 1 conversation without a model; --model NAME bills them.\n"
        );
    }
}
