//! Origin of a request, as its client states it: conversation, agent, parent agent, class and tag. These
//! are claims of the caller, read for records and for budgets of such labels: no right, limit or cache depends
//! on them. `class` says how a plan treats its class.
//!
//! Sources: Claude Code's headers are those of
//! <https://code.claude.com/docs/en/llm-gateway-protocol>; codex's stand in
//! `codex-rs/core/src/responses_metadata.rs` of `openai/codex`. Others are the names that several
//! clients and gateways share.

use http::HeaderMap;
use http::header::USER_AGENT;
use xxhash_rust::xxh3::Xxh3;

use super::class::{LabelHeaders, RequestClass, TURN_METADATA, metadata};
use weir_engine::wire::{Request, agents, json};
use weir_store::ledger::{Attribution, sanitise};
use weir_store::{SECRET_BYTES, Tenant};

/// Headers with the ID of a conversation. The first one counts.
const CONVERSATION: [&str; 10] = [
    "x-weir-conversation",
    "x-claude-code-session-id",
    "session-id",
    "thread-id",
    "session_id",
    "conversation_id",
    "x-session-id",
    "x-conversation-id",
    "x-opencode-session",
    "x-session-affinity",
];
/// Headers with the ID of the agent that started this one.
const PARENT: [&str; 3] =
    ["x-claude-code-parent-agent-id", "x-codex-parent-thread-id", PARENT_SESSION];
/// Header with the session of the agent that started this one, for clients that give each a session of its
/// own. As with others, its conversation is that of its parent.
const PARENT_SESSION: &str = "x-parent-session-id";
/// Header with what the caller counts a request to.
const TAG: &str = "x-weir-tag";
/// Members of an object in a body that name a conversation.
const SESSION: [&str; 4] = ["session_id", "conversation_id", "thread_id", "chat_id"];
/// Marker before the session in the user of earlier versions of Claude Code.
const SESSION_MARKER: &str = "_session_";
/// Maximum size of a member of the body that is read for labels.
const MAX_MEMBER_BYTES: usize = 64 << 10;
/// Bytes of a derived conversation ID; its text has twice as many characters.
const DERIVED_BYTES: usize = 8;

/// Reads the labels in a request's headers.
pub fn from_headers(headers: &HeaderMap) -> Attribution {
    let labels = LabelHeaders::of(headers);
    let text = |name: &str| labels.get(name).and_then(label);
    let stated = || CONVERSATION.into_iter().find_map(text);
    let parent_session = text(PARENT_SESSION);
    let described = || text(TURN_METADATA).and_then(|raw| label(&metadata(&raw, "session_id")?));
    let parent = PARENT.into_iter().find_map(text);
    // codex names each of its agents by a thread of its own; the first has no parent.
    let thread = || parent.as_ref().and_then(|_| text("thread-id"));
    let session = || parent_session.as_ref().and_then(|_| stated());
    let agent = text("x-claude-code-agent-id").or_else(thread).or_else(session);
    Attribution {
        conversation: parent_session.clone().or_else(stated).or_else(described),
        agent: agent.or_else(|| text("x-openai-subagent")).or_else(|| program(headers)),
        class: RequestClass::from_labels(&labels).map(|class| class.word().to_owned()),
        parent,
        tag: text(TAG),
    }
}

/// Returns a text as a label; `None` if it is empty.
fn label(text: &str) -> Option<String> {
    let text = sanitise(text.trim());
    (!text.is_empty()).then(|| text.into_owned())
}

/// Returns the name of the program that sends a request, from its user agent.
fn program(headers: &HeaderMap) -> Option<String> {
    let agent = headers.get(USER_AGENT)?.to_str().ok()?;
    let is_end = |letter: char| letter == '/' || letter.is_whitespace();
    let name = agent.trim().split(is_end).next().and_then(label)?.to_ascii_lowercase();
    Some(match name.as_str() {
        "claude-cli" => "claude-code".to_owned(),
        // codex_cli_rs, codex_exec, codex-tui.
        own if own.starts_with("codex") => "codex".to_owned(),
        _ => name,
    })
}

/// Labels that the body of a request gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BodyLabels {
    pub conversation: ConversationLabel,
    /// Program that its system text names.
    pub agent: Option<&'static str>,
}

impl BodyLabels {
    /// Finds the labels in a body.
    pub fn of(request: &Request<'_>) -> Self {
        Self { conversation: ConversationLabel::of(request), agent: agents::program(request) }
    }
}

/// Conversation of a request by its body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConversationLabel {
    /// The body names it.
    Stated(String),
    /// Hash of its first message that is not the system's.
    Opening(u128),
    /// The body continues a conversation kept by the provider, or has no messages.
    #[default]
    Unknown,
}

impl ConversationLabel {
    /// Finds the conversation in a body.
    pub fn of(request: &Request<'_>) -> Self {
        if let Some(stated) = stated(request) {
            return Self::Stated(stated);
        }
        if request.provider_state.is_some() || request.messages.is_empty() {
            return Self::Unknown;
        }
        let mut hasher = Xxh3::new();
        // If there is no other, those of the system distinguish conversations.
        let head = request.head();
        let first = request.messages.get(head..=head).unwrap_or(&request.messages);
        for raw in first {
            let message = request.protocol.identity(raw);
            hasher.update(&(message.len() as u64).to_le_bytes());
            hasher.update(message.as_bytes());
        }
        Self::Opening(hasher.digest128())
    }
}

/// Returns the conversation that a body names.
fn stated(request: &Request<'_>) -> Option<String> {
    let text = |raw: &str| json::string(raw).and_then(|text| label(&text));
    let of = |raw: Option<&str>| raw.filter(|raw| raw.len() <= MAX_MEMBER_BYTES).and_then(session);
    let conversation = request.conversation().filter(|raw| raw.len() <= MAX_MEMBER_BYTES);
    let id = |raw: &str| json::text_member(raw.as_bytes(), "id").and_then(|id| label(&id));
    conversation
        .and_then(|raw| text(raw).or_else(|| id(raw)))
        .or_else(|| of(request.client_metadata()))
        .or_else(|| of(request.metadata()))
        .or_else(|| request.prompt_cache_key().and_then(text))
}

/// Returns the conversation that an object of the caller's own names.
fn session(raw: &str) -> Option<String> {
    let members = json::members(raw)?;
    let text = |name: &str| {
        let (_, raw) = members.iter().find(|(own, _)| own == name)?;
        json::string(raw)
    };
    let own = SESSION.into_iter().find_map(text).and_then(|own| label(&own));
    own.or_else(|| {
        // Claude Code describes its user and session: as JSON, and in one text before.
        let user = text("user_id")?;
        match json::text_member(user.as_bytes(), "session_id") {
            Some(session) => label(&session),
            None => user.split_once(SESSION_MARKER).and_then(|(_, session)| label(session)),
        }
    })
}

/// Key of derived conversation IDs, the same on all instances of a store.
pub struct ConversationKey([u8; 32]);

impl ConversationKey {
    /// Derives the key from the store's secret.
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        Self(blake3::derive_key("weir 2026-11 conversations", secret))
    }

    /// Adds the labels of a body to those of its headers. The program of a system text is known better
    /// than by the user agent; a conversation counts unless the headers name one.
    pub fn complete(&self, attribution: &mut Attribution, tenant: Tenant, body: &BodyLabels) {
        if let Some(agent) = body.agent {
            attribution.agent = Some(agent.to_owned());
        }
        if attribution.conversation.is_some() {
            return;
        }
        attribution.conversation = match &body.conversation {
            ConversationLabel::Stated(stated) => Some(stated.clone()),
            ConversationLabel::Opening(hash) => Some(self.derived(tenant, *hash)),
            ConversationLabel::Unknown => None,
        };
    }

    /// Derives the ID of a conversation of a tenant from the hash of its first messages.
    fn derived(&self, tenant: Tenant, hash: u128) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&tenant.0).update(&hash.to_le_bytes());
        hasher.finalize().to_hex()[..2 * DERIVED_BYTES].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use weir_engine::wire::Protocol;

    use super::*;

    fn labels(given: &[(&'static str, &'static str)]) -> [Option<String>; 4] {
        let headers = given
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        from_headers(&headers.collect()).labels().map(|label| label.map(str::to_owned))
    }

    #[test]
    fn a_caller_tags_its_request() {
        let tagged = |value| HeaderMap::from_iter([(HeaderName::from_static(TAG), value)]);
        for (value, expected) in [(" search ", Some("search")), ("", None), ("  ", None)] {
            let read = from_headers(&tagged(HeaderValue::from_static(value)));
            assert_eq!(read.tag.as_deref(), expected, "{value:?}");
        }
    }

    #[test]
    fn clients_state_who_they_are() {
        type Headers<'a> = &'a [(&'a str, &'a str)];
        let rows: [(Headers<'_>, [&str; 4]); 9] = [
            (&[], ["", "", "", ""]),
            (&[("user-agent", "OpenAI/Python 2.8.0")], ["", "openai", "", ""]),
            (
                &[
                    ("user-agent", "claude-cli/2.1.280 (external, cli)"),
                    ("x-claude-code-session-id", "s1"),
                    ("x-claude-code-request-class", "main"),
                ],
                ["s1", "claude-code", "", "main"],
            ),
            (
                &[
                    ("user-agent", "claude-cli/2.1.280 (external, cli)"),
                    ("x-claude-code-session-id", "s1"),
                    ("x-claude-code-agent-id", "a2"),
                    ("x-claude-code-parent-agent-id", "a1"),
                ],
                ["s1", "a2", "a1", "subagent"],
            ),
            (
                &[
                    ("user-agent", "codex_exec/0.169.0 (Debian 13; x86_64)"),
                    ("session-id", "s"),
                    ("thread-id", "s"),
                    ("x-codex-turn-metadata", r#"{"request_kind":"turn","session_id":"s"}"#),
                ],
                ["s", "codex", "", "main"],
            ),
            (
                &[
                    ("user-agent", "codex_cli_rs/0.169.0"),
                    ("session-id", "s"),
                    ("thread-id", "t"),
                    ("x-codex-parent-thread-id", "s"),
                    ("x-openai-subagent", "collab_spawn"),
                ],
                ["s", "t", "s", "subagent"],
            ),
            (
                &[("x-codex-turn-metadata", r#"{"request_kind":"turn","session_id":"s"}"#)],
                ["s", "", "", "main"],
            ),
            (
                &[
                    ("user-agent", "opencode/1.18"),
                    ("x-session-id", "c"),
                    ("x-parent-session-id", "p"),
                ],
                ["p", "c", "p", "subagent"],
            ),
            (&[("x-session-id", "  "), ("x-conversation-id", " a ")], ["a", "", "", ""]),
        ];
        for (given, expected) in rows {
            let expected = expected.map(|text| (!text.is_empty()).then(|| text.to_owned()));
            assert_eq!(labels(given), expected, "{given:?}");
        }
    }

    fn conversation(protocol: Protocol, body: &str) -> ConversationLabel {
        ConversationLabel::of(&protocol.read(body.as_bytes(), 100).expect(body))
    }

    #[test]
    fn bodies_name_their_conversation() {
        use Protocol::{Chat, Messages, Responses};
        let rows = [
            (Chat, r#""metadata":{"user_id":"u","session_id":"a"}"#, "a"),
            (Chat, r#""prompt_cache_key":"a""#, "a"),
            (Chat, r#""prompt_cache_key":"b","metadata":{"thread_id":"a"}"#, "a"),
            (Responses, r#""client_metadata":{"session_id":"a"},"prompt_cache_key":"b""#, "a"),
            (Responses, r#""conversation":"a""#, "a"),
            (Responses, r#""conversation":{"id":"a"}"#, "a"),
            (Messages, r#""metadata":{"user_id":"user_1_account_2_session_a"}"#, "a"),
            (
                Messages,
                r#""metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"a\"}"}"#,
                "a",
            ),
        ];
        for (protocol, member, expected) in rows {
            let list = if protocol == Responses { "input" } else { "messages" };
            let body = format!(r#"{{{member},"{list}":[{{"role":"user","content":"x"}}]}}"#);
            let expected = ConversationLabel::Stated(expected.to_owned());
            assert_eq!(conversation(protocol, &body), expected, "{body}");
        }
        // Nobody's conversation: a user's ID, and members of other types.
        for member in [
            r#""metadata":{"user_id":"u"}"#,
            r#""metadata":["session_id"]"#,
            r#""prompt_cache_key":7"#,
            r#""metadata":{"session_id":{}},"user":"u""#,
        ] {
            let body = format!(r#"{{{member},"messages":[{{"role":"user","content":"x"}}]}}"#);
            assert!(matches!(conversation(Chat, &body), ConversationLabel::Opening(_)), "{body}");
        }
        let kept = r#"{"previous_response_id":"resp_1","input":"x"}"#;
        assert_eq!(conversation(Responses, kept), ConversationLabel::Unknown);
    }

    #[test]
    fn requests_that_begin_alike_are_one_conversation() {
        let turns = [
            r#"{"role":"system","content":"s"}"#,
            r#"{"content":"m","role":"developer"}"#,
            r#"{"role":"user","content":"u"}"#,
            r#"{"role":"assistant","content":"a"}"#,
            r#"{"role":"user","content":"v"}"#,
        ];
        let body = |turns: &[&str]| format!(r#"{{"messages":[{}]}}"#, turns.join(","));
        let first = conversation(Protocol::Chat, &body(&turns[..3]));
        assert_eq!(conversation(Protocol::Chat, &body(&turns)), first);
        let other = [turns[0], turns[1], turns[4]];
        assert_ne!(conversation(Protocol::Chat, &body(&other)), first);
        // The system's text may have a clock in it.
        assert_eq!(conversation(Protocol::Chat, &body(&turns[1..])), first);
        assert_eq!(conversation(Protocol::Chat, r#"{"messages":[]}"#), ConversationLabel::Unknown);
        // A mark of the cache moves from message to message.
        let marked = r#"{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],
            "messages":[{"role":"user","content":"u"}]}"#;
        let unmarked = r#"{"system":[{"type":"text","text":"s"}],
            "messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}"#;
        let [marked, unmarked] = [marked, unmarked].map(|it| conversation(Protocol::Messages, it));
        assert_eq!(marked, unmarked);
    }

    #[test]
    fn derived_ids_differ_by_tenant_and_store_and_give_way_to_headers() {
        let derive = |secret: u8, tenant: u8| {
            let mut attribution = Attribution::default();
            let key = ConversationKey::new(&[secret; SECRET_BYTES]);
            key.complete(
                &mut attribution,
                Tenant([tenant; 16]),
                &BodyLabels { conversation: ConversationLabel::Opening(5), agent: None },
            );
            attribution.conversation.expect("it is derived")
        };
        assert_eq!(derive(1, 1), derive(1, 1));
        assert_eq!(derive(1, 1).len(), 2 * DERIVED_BYTES);
        assert!(derive(1, 1) != derive(1, 2) && derive(1, 1) != derive(2, 1));
        let conversation = Some("own".to_owned());
        let mut attribution = Attribution { conversation, ..Attribution::default() };
        let key = ConversationKey::new(&[1; SECRET_BYTES]);
        key.complete(
            &mut attribution,
            Tenant([1; 16]),
            &BodyLabels { conversation: ConversationLabel::Stated("b".to_owned()), agent: None },
        );
        assert_eq!(attribution.conversation.as_deref(), Some("own"));
    }
}
