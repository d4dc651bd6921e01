//! Route table: for each route row its upstream, and the knowledge of that upstream's models. Finds
//! the route of a model; sends nothing.

use std::sync::Arc;

use bytes::Bytes;

use crate::config::{self, Config, DEFAULT_UPSTREAM};
use crate::proxy::upstreams::bound_thinking::BoundThinking;
use crate::proxy::upstreams::learned::Learned;
use crate::proxy::upstreams::usage_refusals::UsageRefusals;
use crate::upstream::Target;
use weir_engine::wire::model::ModelField;

/// Knowledge of one upstream's models.
pub struct UpstreamKnowledge {
    /// Name of the upstream.
    pub name: Arc<str>,
    /// Its origin, if it differs from the default's.
    pub origin: Option<Arc<str>>,
    pub learned: Arc<Learned>,
    /// Models for whose streams usage is not requested.
    pub usage_refusals: UsageRefusals,
    /// Models that refuse thinking after a compaction changed what stands before it.
    pub bound_thinking: BoundThinking,
}

impl UpstreamKnowledge {
    /// Creates empty knowledge of an upstream.
    pub fn nothing(name: &str, config: &Config) -> Self {
        let upstream = config.upstreams.get(name).unwrap_or(&config.upstream);
        Self {
            name: name.into(),
            origin: None,
            learned: Arc::new(Learned::new(None, false, config.learning)),
            usage_refusals: UsageRefusals::new(upstream.ask_usage),
            bound_thinking: BoundThinking::new(false),
        }
    }
}

/// Route of some models: upstream and settings.
pub struct Route {
    pub knowledge: Arc<UpstreamKnowledge>,
    /// The row that they match; an empty one for those that match none.
    pub row: config::Route,
}

impl Route {
    /// Returns the model name for the upstream, if `model` was requested.
    pub fn sent<'a>(&'a self, model: &'a str) -> &'a str {
        self.row.send_as.as_deref().unwrap_or(model)
    }
}

/// All routes.
pub struct Routes {
    config: Arc<Config>,
    unmatched: Arc<Route>,
    rows: Vec<Arc<Route>>,
}

impl Routes {
    /// Creates the routes of `config`; `knowledge` returns that of an upstream by name.
    pub fn new(config: Arc<Config>, knowledge: impl Fn(&str) -> Arc<UpstreamKnowledge>) -> Self {
        let route = |upstream: &str, row| Arc::new(Route { knowledge: knowledge(upstream), row });
        let rows = config.routes.rows.iter().map(|row| route(&row.upstream, row.clone())).collect();
        let unmatched = route(DEFAULT_UPSTREAM, config::Route::default());
        Self { config, unmatched, rows }
    }

    /// Returns the route of models that match no row.
    pub fn unmatched(&self) -> &Arc<Route> {
        &self.unmatched
    }

    /// Returns the route of requests for `model`.
    pub fn find(&self, model: &str) -> &Arc<Route> {
        let row = self.config.routes.find(model);
        row.and_then(|row| self.rows.get(row)).unwrap_or(&self.unmatched)
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        !self.rows.is_empty()
    }
}

/// Change to the model that a body names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelOverride<'a> {
    None,
    /// Replaces another model by this one.
    Replace(&'a str),
    /// Names this model, even if none was named.
    Set(&'a str),
}

impl<'a> ModelOverride<'a> {
    /// Determines the change for a request to `target`, whose path takes precedence over the body.
    /// An upstream that reads the model from the body gets that of the caller's path. If the caller
    /// may use only some models, the body names the same one as the path, whichever the upstream
    /// reads. `sent` is the model for the upstream if the body's own name decided.
    pub fn of(target: &'a Target, sent: Option<&'a str>, has_own_models: bool) -> Self {
        match (&target.path_model, sent) {
            (Some(model), _) if target.is_model_in_body => Self::Set(model),
            (Some(model), _) if has_own_models => Self::Replace(model),
            (_, Some(sent)) => Self::Replace(sent),
            (_, None) => Self::None,
        }
    }

    /// Returns `body` with the model replaced at `spot`, if it changes.
    pub fn apply(self, body: &Bytes, field: Option<&ModelField>) -> Option<Bytes> {
        let (model, field) = match (self, field?) {
            (Self::None, _) | (Self::Replace(_), ModelField::Unnamed { .. }) => return None,
            (Self::Replace(model) | Self::Set(model), field) => (model, field),
        };
        (field.model() != Some(model)).then(|| field.put(body, model).into())
    }
}
