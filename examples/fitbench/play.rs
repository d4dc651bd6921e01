//! Plays one case after the other through one proxy: the turns, then the same requests to a second
//! instance and after a restart, then the requests whose missing values the recall tool may give back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use weir_bench::{Case, CaseItems, Course, Missing, Scores};

use super::process::{Folder, Running, Start};
use super::upstream::{Kind as SeenKind, Seen, Turn, Upstream};
use super::{Kind, Plan, Proxy};

/// Requests without an answer after which a proxy is given up.
const MOST_SILENT: usize = 3;
/// Requests of a case that are sent to a second instance and after a restart.
const SAMPLES: usize = 3;
/// One of so many cases is sent to them.
const SAMPLED_CASES: usize = 4;
/// Requests of a case that are sent again for the recall tool, and values asked for in each.
const PROBES: usize = 6;
const PROBED_VALUES: usize = 1;

/// Request header with the tokens of the tools, for proxies that count messages alone.
const TOOLS_HEADER: &str = "x-fitbench-tools-tokens";

/// Milliseconds of each case and turn through the proxy that does nothing.
pub type Times = HashMap<(usize, usize), f64>;

/// Proxy with its upstream and its running instances.
pub struct Player<'a> {
    proxy: &'a Proxy,
    seed: u64,
    client: reqwest::Client,
    upstream: Upstream,
    /// First and second instance, with the limit that they were started with.
    instances: [Option<(Running, u64)>; 2],
    folders: [Folder; 2],
    /// Time in which a request has to be answered.
    answer: Duration,
    /// Requests that got no answer in time, at this limit.
    silent: usize,
}

/// Exchange of one request.
struct Exchange {
    /// Body that reached the upstream.
    body: Option<Bytes>,
    elapsed_ms: Option<f64>,
}

impl<'a> Player<'a> {
    /// Starts the upstream of a proxy.
    pub async fn new(proxy: &'a Proxy, plan: &Plan) -> Result<Self, String> {
        // The client needs a TLS provider even for plain HTTP. Another part of the process may have
        // installed it before.
        rustls::crypto::ring::default_provider().install_default().ok();
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).timeout(plan.answer);
        let client = client.build().map_err(|error| error.to_string())?;
        let port = match proxy.kind {
            Kind::Running(..) => plan.upstream_port,
            Kind::Bound(_) | Kind::Command(_) => 0,
        };
        Ok(Self {
            proxy,
            seed: plan.seed,
            client,
            upstream: Upstream::start(port).await?,
            instances: [None, None],
            folders: [Folder::new()?, Folder::new()?],
            answer: plan.answer,
            silent: 0,
        })
    }

    /// Whether the bench can set the proxy's limit.
    pub fn has_any_limit(&self) -> bool {
        self.proxy.limit_header.is_some() || !matches!(self.proxy.kind, Kind::Running(..))
    }

    /// Forgets requests without an answer at an earlier limit, and ends the instances that got them.
    pub fn begin(&mut self) {
        if std::mem::take(&mut self.silent) > 0 {
            self.instances = [None, None];
        }
    }

    /// Ends the instances.
    pub async fn end(self) {
        for instance in self.instances.into_iter().flatten() {
            instance.0.stop().await;
        }
    }

    /// Plays a case at a limit. `index` is its number in the run.
    pub async fn play(
        &mut self,
        index: usize,
        case: &Arc<Case>,
        limit_tokens: u64,
        times: &mut Times,
    ) -> Result<Scores, String> {
        let asked = CaseItems::new(case.clone());
        let mut course = Course::new(&asked, limit_tokens);
        let mut extra = weir_bench::scores::ExtraCalls::default();
        let (mut added_ms, mut compaction_ms) = (Vec::new(), Vec::new());
        let mut judged: Vec<(usize, Bytes)> = Vec::new();
        let mut lacking: Vec<(usize, Vec<Missing>)> = Vec::new();
        let mut offered: Vec<bool> = Vec::new();
        self.ready(0, limit_tokens).await?;
        for place in 0..case.conversation.turns.len() {
            let exchange =
                self.exchange(0, &asked, place, limit_tokens, Vec::new(), Some(&mut extra)).await;
            if self.silent >= MOST_SILENT {
                return Err(format!(
                    "{MOST_SILENT} requests got no answer within {} s",
                    self.answer.as_secs()
                ));
            }
            let missing = course.judge(place, exchange.body.as_deref());
            if let Some(elapsed_ms) = exchange.elapsed_ms {
                let nothing_ms = *times.entry((index, place)).or_insert(elapsed_ms);
                if course.is_judged(place) {
                    added_ms.push(elapsed_ms - nothing_ms);
                    let own = course.is_compaction().then_some(elapsed_ms - nothing_ms);
                    compaction_ms.extend(own);
                }
            }
            if !course.is_judged(place) {
                continue;
            }
            let body = exchange.body;
            let offers_recall =
                body.as_ref().is_some_and(|body| weir_bench::recall_tool(body, case).is_some());
            offered.extend(missing.iter().map(|_| offers_recall));
            if offers_recall && !missing.is_empty() {
                lacking.push((place, missing));
            }
            judged.extend(body.map(|body| (place, body)));
        }
        let mut scores = course.finish();
        offered.into_iter().for_each(|own| scores.offered.add(own));
        (scores.added_ms, scores.compaction_ms) = (added_ms, compaction_ms);
        scores.extra = extra;
        if index.is_multiple_of(SAMPLED_CASES) {
            self.compare(&asked, limit_tokens, &judged, &mut scores).await?;
        }
        for (place, missing) in spread(lacking, PROBES, self.seed) {
            self.probe(&asked, place, limit_tokens, missing, &mut scores).await;
        }
        Ok(scores)
    }

    /// Sends requests to a second instance, and to the first one after a restart.
    async fn compare(
        &mut self,
        asked: &CaseItems,
        limit_tokens: u64,
        judged: &[(usize, Bytes)],
        scores: &mut Scores,
    ) -> Result<(), String> {
        let samples = spread(judged.to_vec(), SAMPLES, self.seed);
        if samples.is_empty() || !self.ready(1, limit_tokens).await? {
            return Ok(());
        }
        for (place, body) in &samples {
            let again = self.exchange(1, asked, *place, limit_tokens, Vec::new(), None).await;
            scores.second.add(again.body.as_ref() == Some(body));
        }
        if matches!(self.proxy.kind, Kind::Running(..)) {
            return Ok(());
        }
        if let Some((first, _)) = self.instances[0].take() {
            first.stop().await;
        }
        self.ready(0, limit_tokens).await?;
        for (place, body) in &samples {
            let again = self.exchange(0, asked, *place, limit_tokens, Vec::new(), None).await;
            scores.restarted.add(again.body.as_ref() == Some(body));
        }
        Ok(())
    }

    /// Sends a request again and lets the model ask the recall tool for the missing values.
    async fn probe(
        &mut self,
        asked: &CaseItems,
        place: usize,
        limit_tokens: u64,
        missing: Vec<Missing>,
        scores: &mut Scores,
    ) {
        let wanted: Vec<Missing> = missing.into_iter().take(PROBED_VALUES).collect();
        self.exchange(0, asked, place, limit_tokens, wanted, None).await;
        for found in self.upstream.found() {
            scores.recalled.add(found);
        }
    }

    /// Makes sure that an instance runs with this limit. Returns whether there is one.
    async fn ready(&mut self, number: usize, limit_tokens: u64) -> Result<bool, String> {
        let needs_restart = self.proxy.limit_header.is_none();
        if let Some((_, started_with)) = &self.instances[number]
            && (*started_with == limit_tokens || !needs_restart)
        {
            return Ok(true);
        }
        if let Some((running, _)) = self.instances[number].take() {
            running.stop().await;
        }
        let upstream = self.upstream.base_url();
        let running = match &self.proxy.kind {
            Kind::Bound(_) => Running::here(&self.client, &upstream).await?,
            Kind::Running(first, second) => {
                let own = if number == 0 { Some(first) } else { second.as_ref() };
                let Some(base_url) = own else { return Ok(false) };
                Running::at(base_url)
            }
            Kind::Command(command) => {
                let start = Start {
                    command,
                    upstream: &upstream,
                    limit_tokens,
                    instance: number as u8 + 1,
                    folder: &self.folders[number].0,
                };
                Running::start(&self.client, &start).await?
            }
        };
        self.instances[number] = Some((running, limit_tokens));
        Ok(true)
    }

    /// Sends the request of a turn through an instance.
    async fn exchange(
        &mut self,
        number: usize,
        asked: &CaseItems,
        place: usize,
        limit_tokens: u64,
        wanted: Vec<Missing>,
        extra: Option<&mut weir_bench::scores::ExtraCalls>,
    ) -> Exchange {
        let nothing = Exchange { body: None, elapsed_ms: None };
        let Some((running, _)) = &self.instances[number] else { return nothing };
        let case = &asked.case;
        let length = case.conversation.turns[place];
        self.upstream.set(Turn { case: asked.case.clone(), length, wanted });
        if let Kind::Bound(bound) = self.proxy.kind {
            running.put(bound.body(asked, place, limit_tokens));
        }
        let mut request = self
            .client
            .post(format!("{}/chat/completions", running.base_url))
            .bearer_auth("fitbench")
            .header("content-type", "application/json")
            .header("x-session-id", format!("{}-{limit_tokens}", case.conversation.id))
            .header(TOOLS_HEADER, case.tools_tokens)
            .body(case.body(length));
        if let Some(header) = &self.proxy.limit_header {
            request = request.header(header, limit_tokens);
        }
        let begun = Instant::now();
        let is_answered = match request.send().await {
            Ok(answer) => answer.status().is_success() && answer.bytes().await.is_ok(),
            Err(error) => {
                self.silent += usize::from(error.is_timeout());
                false
            }
        };
        let seen = self.upstream.take();
        let known = seen.iter().rposition(|own| own.kind == SeenKind::Client);
        // If none ends as the client's, the proxy changed the end of the one that it answered with.
        let last = known.or_else(|| seen.len().checked_sub(1)).filter(|_| is_answered);
        if let Some(extra) = extra {
            let is_extra =
                |(index, own): &(usize, &Seen)| own.kind == SeenKind::Extra && Some(*index) != last;
            for (_, own) in seen.iter().enumerate().filter(is_extra) {
                extra.calls += 1;
                extra.input_tokens += own.input_tokens;
                extra.output_tokens += own.output_tokens;
            }
        }
        last.map(|index| &seen[index]).map_or(nothing, |own| Exchange {
            body: Some(own.body.clone()),
            elapsed_ms: Some(own.at.duration_since(begun).as_secs_f64() * 1000.0),
        })
    }
}

/// Returns up to `most` items, spread evenly over all from a start that the seed gives.
fn spread<T>(items: Vec<T>, most: usize, seed: u64) -> Vec<T> {
    let count = items.len();
    let mut by_place: BTreeMap<usize, T> = items.into_iter().enumerate().collect();
    if count <= most {
        return by_place.into_values().collect();
    }
    let step = count / most;
    let start = seed as usize % step;
    let places = (0..most).map(|number| start + number * count / most);
    places.filter_map(|place| by_place.remove(&place)).collect()
}
