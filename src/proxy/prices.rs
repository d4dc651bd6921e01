//! What routes say that their models cost, and which models were found to have no price. Knows nothing
//! of prices by a model's name.

use std::collections::HashSet;
use std::sync::Mutex;

use super::shared::shown;
use crate::budget::Price;
use crate::config::{Config, Route};

/// How many models without a price are remembered as warned about.
const WARNED_MODELS: usize = 1000;
/// The prices that routes set, by the upstream's origin and the models that they send there.
#[derive(Default)]
pub struct RoutePrices(Vec<(String, Route)>);

impl RoutePrices {
    /// Those of `config`; `origin` is that of the upstream of a name.
    pub fn new(config: &Config, origin: impl Fn(&str) -> String) -> Self {
        let rows = config.routes.rows.iter().filter(|row| row.price.is_some());
        Self(rows.map(|row| (origin(&row.upstream), row.clone())).collect())
    }

    /// The price of `model` at the upstream with that origin.
    pub fn find(&self, upstream: &str, model: &str) -> Option<&Price> {
        let row = self.0.iter().find(|(origin, row)| origin == upstream && row.may_send(model));
        row.and_then(|(_, row)| row.price.as_ref())
    }
}

/// Names that a warning was given for.
#[derive(Default)]
pub struct Warned(Mutex<HashSet<String>>);

impl Warned {
    /// Warns of `model`, unless that was done before.
    pub fn warn_once(&self, model: &str) {
        let Ok(mut warned) = self.0.lock() else { return };
        let model = shown(model);
        if warned.len() < WARNED_MODELS && !warned.contains(&model) {
            tracing::warn!(
                target: "weir::models",
                model,
                "no known price: its requests are metered at no cost; set one under \
                 [models.\"NAME\"] in the configuration"
            );
            warned.insert(model);
        }
    }
}
