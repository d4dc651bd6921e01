//! Names of spans' attributes, in one place: OpenTelemetry's conventions for generative AI are still in
//! development (these are those of version 1.41), while those for HTTP and servers are stable.

pub const OPERATION: &str = "gen_ai.operation.name";
pub const PROVIDER: &str = "gen_ai.provider.name";
pub const REQUEST_MODEL: &str = "gen_ai.request.model";
pub const REQUEST_MAX_TOKENS: &str = "gen_ai.request.max_tokens";
pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub const CONVERSATION: &str = "gen_ai.conversation.id";
pub const AGENT: &str = "gen_ai.agent.name";
pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub const CACHE_WRITE_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
pub const REASONING_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";

pub const METHOD: &str = "http.request.method";
pub const ROUTE: &str = "http.route";
pub const STATUS: &str = "http.response.status_code";
pub const SERVER_ADDRESS: &str = "server.address";
pub const SERVER_PORT: &str = "server.port";
pub const ERROR_TYPE: &str = "error.type";

pub const OUTCOME: &str = "weir.outcome";
pub const ACTION: &str = "weir.action";
pub const RECEIVED_TOKENS: &str = "weir.received_tokens";
pub const SENT_TOKENS: &str = "weir.sent_tokens";
pub const LIMIT_TOKENS: &str = "weir.limit_tokens";
pub const COMPACTIONS: &str = "weir.compactions";
pub const COMPACTED: &str = "weir.compacted";
pub const COST_USD: &str = "weir.cost_usd";
pub const KEY: &str = "weir.key";
pub const TEAM: &str = "weir.team";
pub const CLASS: &str = "weir.class";
pub const REQUEST_ID: &str = "weir.request_id";
pub const UPSTREAM: &str = "weir.upstream";
pub const ATTEMPTS: &str = "weir.attempts";

/// Returns the operation of a route in the words of the conventions; `None` for routes that they do
/// not cover.
pub fn operation(route: &str) -> Option<&'static str> {
    match route {
        "chat/completions" | "responses" | "messages" => Some("chat"),
        "completions" => Some("text_completion"),
        "embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// Domains of providers, and their names in the conventions.
const PROVIDERS: [(&str, &str); 12] = [
    ("openai.com", "openai"),
    ("anthropic.com", "anthropic"),
    ("azure.com", "azure.ai.openai"),
    ("amazonaws.com", "aws.bedrock"),
    ("googleapis.com", "gcp.gemini"),
    ("mistral.ai", "mistral_ai"),
    ("groq.com", "groq"),
    ("deepseek.com", "deepseek"),
    ("x.ai", "x_ai"),
    ("cohere.com", "cohere"),
    ("perplexity.ai", "perplexity"),
    ("moonshot.ai", "moonshot_ai"),
];

/// Returns the provider at `host`; for an unknown one, that whose API the route has.
pub fn provider(host: &str, route: &str) -> &'static str {
    let is_at = |domain: &str| {
        host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let known = PROVIDERS.iter().find(|(domain, _)| is_at(domain)).map(|(_, name)| *name);
    known.unwrap_or(if route == "messages" { "anthropic" } else { "openai" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_known_by_their_domains_or_else_by_their_apis() {
        for (host, route, expected) in [
            ("api.openai.com", "responses", "openai"),
            ("my.openai.azure.com", "chat/completions", "azure.ai.openai"),
            ("api.x.ai", "chat/completions", "x_ai"),
            ("relax.ai", "chat/completions", "openai"),
            ("127.0.0.1", "messages", "anthropic"),
        ] {
            assert_eq!(provider(host, route), expected, "{host}");
        }
    }
}
