//! Prices set by routes, and models without a known price. Knows nothing of prices by a model's
//! name.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::config::{Config, Priced, Route};
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::proxy::logged::shown;
use weir_store::budget::Price;

/// Maximum number of models without a price remembered as warned about.
const WARNED_MODELS: usize = 1000;
/// Prices that routes set, by the upstream's origin and the models that they send there.
#[derive(Default)]
pub struct RoutePrices(Vec<(String, Route)>);

impl RoutePrices {
    /// Collects the prices of `config`; `origin` returns the origin of an upstream's name.
    pub fn new(config: &Config, origin: impl Fn(&str) -> String) -> Self {
        let rows = config.routes.rows.iter().filter(|row| row.price.is_some());
        Self(rows.map(|row| (origin(&row.upstream), row.clone())).collect())
    }

    /// Returns the price of `model` at the upstream with that origin.
    pub fn find(&self, upstream: &str, model: &str) -> Option<&Price> {
        let row = self.0.iter().find(|(origin, row)| origin == upstream && row.may_send(model));
        row.and_then(|(_, row)| row.price.as_ref())
    }
}

/// Names for which a warning was given.
#[derive(Default)]
pub struct Warned(Mutex<HashSet<String>>);

impl Warned {
    /// Refuses a model without a known price if `prices.unknown` requires it; warns once if it is
    /// metered at no cost.
    pub fn check(&self, config: &Config, model: &str) -> Result<(), ProxyError> {
        match config.price(model) {
            Priced::Known(_) | Priced::Default(_) => Ok(()),
            Priced::Unpriced => {
                self.warn_once(model);
                Ok(())
            }
            Priced::Refused => Err(ProxyError {
                param: Some("model".to_owned()),
                ..ProxyError::new(
                    ErrorKind::ModelNotPriced,
                    format!(
                        "weir knows no price for the model '{}', and serves none without \
                         (prices.unknown = \"reject\"). The operator sets one under \
                         [models.\"NAME\"].",
                        shown(model)
                    ),
                )
            }),
        }
    }

    /// Warns of `model`, unless that was already done.
    fn warn_once(&self, model: &str) {
        let model = shown(model);
        if self.is_first(model.clone()) {
            tracing::warn!(
                target: "weir::models",
                model,
                "no known price: its requests are metered at no cost; set one under \
                 [models.\"NAME\"] in the configuration"
            );
        }
    }

    /// Records a name, and returns whether it is new and there was room for it.
    pub fn is_first(&self, name: String) -> bool {
        let Ok(mut warned) = self.0.lock() else { return false };
        (warned.len() < WARNED_MODELS || warned.contains(&name)) && warned.insert(name)
    }
}
