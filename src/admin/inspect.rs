//! Inspector: plans the requests of a conversation that an operator gives, and renders them. Asks no
//! model, keeps nothing and logs no content; `proxy::plan::inspect` makes the plans.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api::{Answer, done, read};
use super::{AdminState, Refusal, refused};
use crate::proxy::ProxyError;
use crate::proxy::plan::inspect::{
    Inspection, InspectionLimit, MAX_POLICIES, MAX_TURNS, Opened, Wanted,
};
use crate::proxy::settle::recent::{RecentConversation, RecentConversations};
use weir_engine::wire::Protocol;
use weir_eval::recorded::{self, ReadText, Recorded, TextForm};

/// Path of inspections.
pub(super) const PATH: &str = "/admin/v1/inspect";
/// Maximum size of a request for an inspection.
pub(super) const MAX_BODY_BYTES: usize = 16 << 20;
/// Maximum number of conversations that an answer lists.
const MAX_LISTED: usize = 1000;

/// Request for an inspection.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InspectionQuery {
    /// A request body, JSON lines of conversations, or an agent's transcript.
    text: String,
    /// Protocol of requests and lines; recognised by their shape if absent.
    protocol: Option<String>,
    /// Place of the conversation in the text.
    #[serde(default)]
    conversation: usize,
    policies: Option<Vec<String>>,
    max_input_tokens: Option<u64>,
    /// Limit as a share of the last request, in percent.
    limit_percent: Option<u64>,
    model: Option<String>,
    /// Request to describe, counted from 1; the last if absent.
    turn: Option<usize>,
    /// Whether all requests are planned, or only the described one.
    #[serde(default = "yes")]
    turns: bool,
    /// Message or note to show.
    message: Option<usize>,
    note: Option<usize>,
    /// Whether it is shown whole, however long.
    #[serde(default)]
    whole: bool,
}

fn yes() -> bool {
    true
}

/// Answer with an inspection.
#[derive(Serialize)]
struct Inspected {
    object: &'static str,
    /// `request`, `trace`, `claude_code` or `codex`.
    form: &'static str,
    /// Conversations of the text, as far as they are listed.
    conversations: Vec<Value>,
    conversation: usize,
    protocol: &'static str,
    #[serde(flatten)]
    inspection: Inspection,
}

/// Newest request of a recent conversation.
#[derive(Serialize)]
struct RecentRequest<'a> {
    object: &'static str,
    #[serde(flatten)]
    conversation: RecentConversation,
    text: &'a str,
}

impl From<ProxyError> for Refusal {
    fn from(error: ProxyError) -> Self {
        Self::new(error.kind.status(), error.kind.word(), error.message)
    }
}

impl InspectionQuery {
    fn limit(&self) -> Result<InspectionLimit, Refusal> {
        match (self.max_input_tokens, self.limit_percent) {
            (None, None) => Ok(InspectionLimit::Model),
            (Some(0), None) => Err(refused("max_input_tokens must be above 0.")),
            (Some(tokens), None) => Ok(InspectionLimit::Tokens(tokens)),
            (None, Some(percent)) if (1..=100).contains(&percent) => {
                Ok(InspectionLimit::Percent(percent))
            }
            (None, Some(percent)) => {
                Err(refused(format!("limit_percent is {percent}; it must be from 1 to 100.")))
            }
            (Some(_), Some(_)) => {
                Err(refused("Give max_input_tokens or limit_percent, and not both."))
            }
        }
    }

    fn opened(&self) -> Result<Option<Opened>, Refusal> {
        match (self.message, self.note) {
            (None, None) => Ok(None),
            (Some(message), None) => Ok(Some(Opened::Message(message))),
            (None, Some(note)) => Ok(Some(Opened::Note(note))),
            (Some(_), Some(_)) => Err(refused("Give message or note, and not both.")),
        }
    }

    fn protocol(&self) -> Result<Option<Protocol>, Refusal> {
        let Some(name) = &self.protocol else { return Ok(None) };
        let names = Protocol::NAMES.map(|(name, _)| name).join(", ");
        Protocol::from_name(name)
            .map(Some)
            .ok_or_else(|| refused(format!("protocol is {name:.40?}; it is one of {names}.")))
    }
}

impl AdminState {
    /// Lists the choices of an inspection.
    pub(super) fn inspection_choices(&self) -> Answer {
        let rules = self.rules();
        done(&json!({
            "object": "weir.inspection_choices",
            "policies": rules.policies.names(),
            "max_policies": MAX_POLICIES,
            "max_turns": MAX_TURNS,
            "max_body_bytes": MAX_BODY_BYTES,
        }))
    }

    /// Lists the recent conversations, if operators may see them.
    pub(super) fn recent_conversations(&self) -> Answer {
        let proxy = self.serving()?;
        let recent = proxy.recent();
        done(&json!({
            "object": "list",
            "is_on": recent.is_some(),
            "data": recent.map(RecentConversations::list).unwrap_or_default(),
        }))
    }

    /// Shows the newest request of a recent conversation.
    pub(super) fn recent_conversation(&self, id: &str) -> Answer {
        let proxy = self.serving()?;
        let recent = proxy.recent().ok_or_else(|| {
            let message = "live conversations are off. Set admin.show_conversations = true, and \
                           context.originals to \"memory\" or \"store\".";
            Refusal::new(StatusCode::NOT_FOUND, "not_found", message)
        })?;
        let found = id.parse().ok().and_then(|id| recent.find(id));
        let (conversation, body) = found.ok_or_else(|| {
            let message = "this conversation is no longer kept; newer ones took its place";
            Refusal::new(StatusCode::NOT_FOUND, "not_found", message)
        })?;
        done(&RecentRequest {
            object: "weir.recent_conversation",
            conversation,
            text: &String::from_utf8_lossy(&body),
        })
    }

    /// Plans the requests of a conversation.
    pub(super) async fn inspect(&self, body: &[u8]) -> Answer {
        let asked: InspectionQuery = read(body)?;
        let protocol = asked.protocol()?;
        let policies = self.policies_of(&asked)?;
        let (limit, opened) = (asked.limit()?, asked.opened()?);
        let inspector = self.serving()?.inspector();
        let inspected = inspector.run(move |plans| {
            let (form, mut found) = match recorded::read(&asked.text, protocol) {
                Ok(ReadText { form: TextForm::Trace, left_out: Some(said), .. }) | Err(said) => {
                    return Ok(Err(said));
                }
                Ok(found) => (found.form, found.recorded),
            };
            let conversations = listed(&found);
            let place = asked.conversation;
            if place >= found.len() {
                let all = found.len();
                return Ok(Err(format!("conversation is {place}; the text has {all}, from 0 on.")));
            }
            let Recorded { protocol, body, is_request, .. } = found.swap_remove(place);
            drop(found);
            let wanted = Wanted {
                protocol,
                body: body.into(),
                is_request,
                model: asked.model,
                limit,
                policies,
                turn: asked.turn,
                wants_turns: asked.turns,
                opened,
                is_whole: asked.whole,
            };
            Ok(Ok(Inspected {
                object: "weir.inspection",
                form: form.name(),
                conversations,
                conversation: place,
                protocol: protocol.name(),
                inspection: plans.inspect(&wanted)?,
            }))
        });
        done(&inspected.await?.map_err(refused)?)
    }

    /// Returns the names of the policies to compare.
    fn policies_of(&self, asked: &InspectionQuery) -> Result<Vec<String>, Refusal> {
        let default = || vec!["default".to_owned()];
        let names = asked.policies.clone().filter(|names| !names.is_empty());
        let names = names.unwrap_or_else(default);
        if names.len() > MAX_POLICIES {
            let all = names.len();
            return Err(refused(format!("{all} policies are too many; compare {MAX_POLICIES}.")));
        }
        let rules = self.rules();
        let known = names.iter().map(|name| rules.policies.read_name(name));
        known.collect::<Result<_, _>>().map_err(|said| refused(format!("policies: {said}")))
    }
}

fn listed(found: &[Recorded]) -> Vec<Value> {
    let listed = found.iter().take(MAX_LISTED);
    let id = |own: &Recorded| own.id.chars().take(200).collect::<String>();
    listed.map(|own| json!({"id": id(own), "bytes": own.body.len()})).collect()
}
