//! How many tokens a message takes. Pure: a count depends on the content and the encoding alone.

/// The public encodings that are counted exactly, and the estimate for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `o200k_base`: GPT-4o, GPT-4.1, GPT-5 and later, the o series, gpt-oss.
    O200kBase,
    /// `cl100k_base`: GPT-4, GPT-3.5 and the third generation of embeddings.
    Cl100kBase,
    /// `p50k_base`: Codex and the later GPT-3 models.
    P50kBase,
    /// `p50k_edit`: the edit models.
    P50kEdit,
    /// `r50k_base`: GPT-3.
    R50kBase,
    /// Not public: estimated by script and kind of content.
    Estimate,
}

impl Encoding {
    /// The encoding called `name`, as written in `config/models.toml`; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "o200k_base" => Self::O200kBase,
            "cl100k_base" => Self::Cl100kBase,
            "p50k_base" => Self::P50kBase,
            "p50k_edit" => Self::P50kEdit,
            "r50k_base" => Self::R50kBase,
            "estimate" => Self::Estimate,
            _ => return None,
        })
    }
}
