//! One message: its facts and size, the content that compactions read, and its shorter forms.

pub(super) mod clip;
pub(super) mod ending;
pub(super) mod extract;
pub(super) mod form;
pub(super) mod links;
pub(super) mod measure;
pub(super) mod pasted;
pub(super) mod placeholder;
pub(super) mod quote;
pub mod reading;
pub(super) mod reference;
pub(super) mod units;
pub(super) mod values;
