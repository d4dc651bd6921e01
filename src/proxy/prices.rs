//! What routes say that their models cost, and which models were found to have no price. Knows nothing
//! of prices by a model's name.

use std::collections::HashSet;
use std::sync::Mutex;

use super::shared::shown;
use super::{ErrorKind, ProxyError};
use crate::budget::Price;
use crate::config::{Config, Priced, Route};

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
    /// Refuses a model without a known price where `prices.unknown` says so; warns of it once
    /// where it is metered at no cost.
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

    /// Warns of `model`, unless that was done before.
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

    /// Notes a name, and returns whether that is new and there was room for it.
    pub fn is_first(&self, name: String) -> bool {
        let Ok(mut warned) = self.0.lock() else { return false };
        (warned.len() < WARNED_MODELS || warned.contains(&name)) && warned.insert(name)
    }
}
