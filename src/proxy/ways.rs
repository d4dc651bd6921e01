//! The ways that requests may go: for each row of the routes the upstream it names, and what is known
//! of that one's models. Finds the way of a model; sends nothing.

use std::sync::Arc;

use bytes::Bytes;

use super::asking::Refusers;
use super::learned::Learned;
use crate::config::{Config, DEFAULT_UPSTREAM, LargerWhen, Route};
use crate::upstream::Target;
use crate::wire::model::Spot;

/// What one upstream has shown of its models.
pub struct Taught {
    /// The upstream's name.
    pub name: Arc<str>,
    /// Its origin, where that is another than the default's.
    pub origin: Option<Arc<str>>,
    pub learned: Arc<Learned>,
    /// Models whose streams are not asked for their usage.
    pub refusers: Refusers,
}

impl Taught {
    /// Nothing, of an upstream that is not asked.
    fn nothing(name: &str, config: &Config) -> Self {
        let upstream = config.upstreams.get(name).unwrap_or(&config.upstream);
        Self {
            name: name.into(),
            origin: None,
            learned: Arc::new(Learned::nothing(config.learning)),
            refusers: Refusers::new(upstream.ask_usage),
        }
    }
}

/// Where requests of some models go, and under what.
pub struct Way {
    pub taught: Arc<Taught>,
    /// The row that they fit; `None` for those that fit none.
    route: Option<Route>,
}

impl Way {
    /// The model as the upstream gets it, where `model` was asked for.
    pub fn sent<'a>(&'a self, model: &'a str) -> &'a str {
        self.route.as_ref().and_then(|route| route.send_as.as_deref()).unwrap_or(model)
    }

    pub fn fallback(&self) -> &[String] {
        self.route.as_ref().map_or(&[], |route| &route.fallback)
    }

    /// The model to turn to where a conversation does not fit.
    pub fn larger(&self) -> Option<(&str, LargerWhen)> {
        let route = self.route.as_ref()?;
        Some((route.larger.as_deref()?, route.larger_when))
    }

    pub fn max_input_tokens(&self) -> Option<u64> {
        self.route.as_ref()?.max_input_tokens
    }

    pub fn policy(&self) -> Option<&str> {
        self.route.as_ref()?.policy.as_deref()
    }
}

/// All ways.
pub struct Ways {
    config: Arc<Config>,
    unmatched: Arc<Way>,
    rows: Vec<Arc<Way>>,
}

impl Ways {
    /// Those of `config`; `taught` is what is known of the upstream of a name.
    pub fn new(config: Arc<Config>, taught: impl Fn(&str) -> Arc<Taught>) -> Self {
        let rows = config.routes.rows.iter().map(|route| {
            Arc::new(Way { taught: taught(&route.upstream), route: Some(route.clone()) })
        });
        let rows = rows.collect();
        let unmatched = Arc::new(Way { taught: taught(DEFAULT_UPSTREAM), route: None });
        Self { config, unmatched, rows }
    }

    /// The same where nothing is sent and nothing was learned.
    pub fn untaught(config: &Arc<Config>) -> Self {
        Self::new(Arc::clone(config), |name| Arc::new(Taught::nothing(name, config)))
    }

    /// The way of what fits no row.
    pub fn unmatched(&self) -> &Arc<Way> {
        &self.unmatched
    }

    /// The way of requests that ask for `model`.
    pub fn find(&self, model: &str) -> &Arc<Way> {
        let row = self.config.routes.find(model);
        row.and_then(|row| self.rows.get(row)).unwrap_or(&self.unmatched)
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        !self.rows.is_empty()
    }
}

/// What becomes of the model that a body names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put<'a> {
    Nothing,
    /// This one takes the place of another.
    InPlace(&'a str),
    /// It is named, also where none was.
    There(&'a str),
}

impl<'a> Put<'a> {
    /// Of a request that goes to `target`, whose path goes before the body. An upstream that looks for
    /// the model there finds that of the caller's path. Where only some models are open to the caller,
    /// the body names no other than the path, whichever of the two the upstream goes by. `sent` is what
    /// the upstream gets where the body's own name was gone by.
    pub fn of(target: &'a Target, sent: Option<&'a str>, has_own_models: bool) -> Self {
        match (&target.path_model, sent) {
            (Some(model), _) if target.is_model_in_body => Self::There(model),
            (Some(model), _) if has_own_models => Self::InPlace(model),
            (_, Some(sent)) => Self::InPlace(sent),
            (_, None) => Self::Nothing,
        }
    }

    /// `body`, in which `spot` is that of its model, where it is to be another.
    pub fn into(self, body: &Bytes, spot: Option<&Spot>) -> Option<Bytes> {
        let (model, spot) = match (self, spot?) {
            (Self::Nothing, _) | (Self::InPlace(_), Spot::Unnamed { .. }) => return None,
            (Self::InPlace(model) | Self::There(model), spot) => (model, spot),
        };
        (spot.model() != Some(model)).then(|| spot.put(body, model).into())
    }
}
