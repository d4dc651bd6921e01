//! Classification of a provider path by its segments: metered routes, lists of models, everything
//! else. Pure.

/// Routes that answer a single request and bill for it. Each takes a JSON body that names a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Chat,
    Completions,
    Embeddings,
    Responses,
    Compact,
    Messages,
    Images,
    Speech,
    Moderations,
}

impl Route {
    /// Returns the path after the base.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Responses => "responses",
            Self::Compact => "responses/compact",
            Self::Messages => "messages",
            Self::Images => "images/generations",
            Self::Speech => "audio/speech",
            Self::Moderations => "moderations",
        }
    }
}

/// Kind of resource that a path addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// By POST: a metered answer.
    Route(Route),
    /// By GET: the list of models.
    Models,
    /// By GET: one model.
    Model(String),
    /// By POST: the count of a conversation's tokens, which costs nothing.
    Count,
    /// Everything else, much of it stored at the provider.
    Other(Naming),
}

/// Place where a request that writes to another route names its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `model` of the body: a member of its JSON object, or a field of its form.
    Body,
    /// `params.model` of each of its `requests`, as Anthropic's batches have it.
    Requests,
    /// `model` of the body if it runs one: Mistral begins and continues conversations so, OpenAI only keeps them.
    Optional,
    /// Nowhere, and no model runs.
    Nowhere,
    /// Where weir does not look: in a stored file, an assistant, an earlier request. Also of routes
    /// that weir does not know.
    Unseen,
}

impl Naming {
    fn of(names: &[&str]) -> Self {
        match names {
            ["audio", "transcriptions" | "translations"]
            | ["images", "edits" | "variations"]
            | ["videos"]
            | ["fine_tuning", "jobs"]
            | ["assistants"]
            | ["threads", "runs"]
            | ["threads", _, "runs"] => Self::Body,
            ["messages", "batches"] => Self::Requests,
            ["conversations"] | ["conversations", _] => Self::Optional,
            ["files" | "uploads" | "vector_stores" | "containers", ..]
            | ["conversations", _, "items", ..]
            | ["threads"]
            | ["threads", _]
            | ["threads", _, "messages", ..]
            | ["chat", "completions", _]
            | ["batches" | "responses", _, "cancel"]
            | ["messages", "batches", _, "cancel"]
            | ["fine_tuning", "jobs", _, "cancel" | "pause"] => Self::Nowhere,
            _ => Self::Unseen,
        }
    }
}

impl Route {
    /// Whether its requests have prompts that weir forwards unread: weir neither limits their size
    /// nor compacts them.
    pub fn is_unread_conversation(self) -> bool {
        self == Self::Completions
    }

    /// Whether many of its answers report no usage, so that only the request has figures of the cost.
    pub fn may_lack_usage(self) -> bool {
        matches!(self, Self::Images | Self::Speech)
    }
}

impl Endpoint {
    /// Returns its label in metrics, one of a few words.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Route(route) => route.name(),
            Self::Models | Self::Model(_) => "models",
            Self::Count | Self::Other(_) => "other",
        }
    }

    /// Classifies non-empty path segments after the base or after a deployment.
    pub fn of(names: &[&str]) -> Self {
        let lower: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        match lower.as_slice() {
            ["chat", "completions"] => Self::Route(Route::Chat),
            ["completions"] => Self::Route(Route::Completions),
            ["embeddings"] => Self::Route(Route::Embeddings),
            ["responses"] => Self::Route(Route::Responses),
            ["responses", "compact"] => Self::Route(Route::Compact),
            ["messages"] => Self::Route(Route::Messages),
            ["images", "generations"] => Self::Route(Route::Images),
            ["audio", "speech"] => Self::Route(Route::Speech),
            ["moderations"] => Self::Route(Route::Moderations),
            ["models"] => Self::Models,
            ["models", ..] => Self::Model(names[1..].join("/")),
            ["messages", "count_tokens"] | ["responses", "input_tokens"] => Self::Count,
            names => Self::Other(Naming::of(names)),
        }
    }
}
