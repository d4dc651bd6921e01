//! What a path asks for at the provider, told from its names alone: what weir meters, what it shows
//! to anybody, and all the rest. Pure.

/// Routes that answer a request of their own and bill it: each takes a JSON body that names a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Chat,
    Completions,
    Embeddings,
    Responses,
    Messages,
    Images,
    Speech,
    Moderations,
}

impl Route {
    /// Its path behind the base.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Images => "images/generations",
            Self::Speech => "audio/speech",
            Self::Moderations => "moderations",
        }
    }
}

/// What a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// By POST: an answer that is metered.
    Route(Route),
    /// By GET: which models there are.
    Models,
    /// By GET: one model.
    Model(String),
    /// All else, much of which is stored at the provider.
    Other,
}

impl Route {
    /// Whether its requests are conversations that weir forwards without reading them: no limit on
    /// their size holds, and nothing is compacted.
    pub fn is_unread_conversation(self) -> bool {
        matches!(self, Self::Completions | Self::Responses | Self::Messages)
    }
}

impl Endpoint {
    /// One of a few words for it, as metrics have it.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Route(route) => route.name(),
            Self::Models | Self::Model(_) => "models",
            Self::Other => "other",
        }
    }

    /// What these names ask for: the segments behind the base, or behind a deployment, without
    /// empty ones.
    pub fn of(names: &[&str]) -> Self {
        let lower: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        match lower.as_slice() {
            ["chat", "completions"] => Self::Route(Route::Chat),
            ["completions"] => Self::Route(Route::Completions),
            ["embeddings"] => Self::Route(Route::Embeddings),
            ["responses"] => Self::Route(Route::Responses),
            ["messages"] => Self::Route(Route::Messages),
            ["images", "generations"] => Self::Route(Route::Images),
            ["audio", "speech"] => Self::Route(Route::Speech),
            ["moderations"] => Self::Route(Route::Moderations),
            ["models"] => Self::Models,
            ["models", ..] => Self::Model(names[1..].join("/")),
            _ => Self::Other,
        }
    }
}
