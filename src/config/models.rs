//! The catalogue of models: windows and encodings by name.

use crate::tokens::Encoding;

/// What is known of one model. Tokens throughout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// Input and output together.
    pub window_tokens: u64,
    /// A separate cap on input, where the provider has one.
    pub max_input_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub encoding: Encoding,
    /// Whether the model refuses two user or two assistant messages in a row.
    pub strict_alternation: bool,
}

/// Windows by model name.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {}
