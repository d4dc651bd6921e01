//! `weir conversations`: reads and deletes kept conversations in the store, whether or not a weir
//! serves from it. `store::conversations` documents their meaning.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::moments::moment;
use super::store_path::StoreArgs;
use super::table::left_aligned;
use crate::proxy::conversations::pages::{exported, facts};
use weir_engine::compact::report::shown::json_line;
use weir_store::conversations::{Conversation, ConversationFacts, MAX_PAGE};
use weir_store::{Store, StoreError, Tenant, now_ms};

const EXAMPLES: &str = "\
Examples:
  weir conversations list --team search
  weir conversations show trip-1 --team search
  weir conversations export trip-1 --team search > trip-1.jsonl
      writes a line of JSON that `weir replay` reads
  weir conversations delete trip-1 --team search
  weir conversations list --tenant 0123456789abcdef0123456789abcdef
      those of a caller in open mode; `weir usage --by tenant` lists callers

Callers keep conversations with the header x-weir-conversation, if conversations.enabled or their \
key allows it, and reach their own at /weir/v1/conversations. These commands work on the store, \
also while weir serves from it: give them the same --config or --store.";

/// Lists, shows, exports and deletes kept conversations
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct ConversationsArgs {
    #[command(subcommand)]
    command: ConversationsCommand,
    /// The team that they belong to [default: default]
    #[arg(long, global = true, conflicts_with = "tenant")]
    team: Option<String>,
    /// The caller that they belong to, in open mode: its 32 digits in `weir usage --by tenant`
    #[arg(long, value_name = "ID", global = true, value_parser = tenant)]
    tenant: Option<Tenant>,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Subcommand)]
enum ConversationsCommand {
    /// Lists conversations with their sizes and times
    #[command(after_help = EXAMPLES)]
    List {
        /// Prints JSON, in the form of /weir/v1/conversations
        #[arg(long)]
        json: bool,
    },
    /// Shows a conversation, a line of JSON per message
    #[command(after_help = EXAMPLES)]
    Show {
        /// The conversation's name
        name: String,
    },
    /// Prints a conversation as one line of JSON that `weir replay` reads
    #[command(after_help = EXAMPLES)]
    Export {
        /// The conversation's name
        name: String,
    },
    /// Deletes a conversation with all its messages
    #[command(after_help = EXAMPLES)]
    Delete {
        /// The conversation's name
        name: String,
    },
}

fn tenant(text: &str) -> Result<Tenant, String> {
    let mut tenant = Tenant([0; 16]);
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    let digits =
        digits.ok_or("write the 32 hexadecimal digits that `weir usage --by tenant` shows")?;
    tenant.0 = digits.to_be_bytes();
    Ok(tenant)
}

/// Runs `weir conversations …`.
pub(super) fn run(args: &ConversationsArgs) -> Result<(), String> {
    let store = args.store.existing()?;
    let team = args.team.as_deref().unwrap_or("default");
    let tenant = args.tenant.unwrap_or_else(|| store.team_tenant(team));
    super::print(&super::block_on(act(&args.command, &store, tenant))?)
}

async fn act(
    command: &ConversationsCommand,
    store: &Store,
    tenant: Tenant,
) -> Result<String, String> {
    match command {
        ConversationsCommand::List { json } => {
            let all = all(store, tenant).await?;
            if *json {
                let data: Vec<Value> = all.iter().map(facts).collect();
                return Ok(serde_json::json!({"object": "list", "data": data}).to_string() + "\n");
            }
            match all.is_empty() {
                true => Ok(NONE.to_owned()),
                false => Ok(table(&all)),
            }
        }
        ConversationsCommand::Show { name } => {
            let found = find(store, tenant, name).await?;
            let lines = found
                .messages
                .iter()
                .map(|(_, message)| json_line(&String::from_utf8_lossy(&message.text)) + "\n");
            Ok(lines.collect())
        }
        ConversationsCommand::Export { name } => Ok(exported(&find(store, tenant, name).await?)),
        ConversationsCommand::Delete { name } => {
            // weir's own requests make room again.
            let deleted = store.delete_conversation(tenant, name, u64::MAX, now_ms()).await;
            match deleted.map_err(said)? {
                true => Ok(format!("deleted {name}\n")),
                false => Err(unknown(name)),
            }
        }
    }
}

const NONE: &str = "there are none here; --team names another team, and in open mode --tenant a caller that \
                    `weir usage --by tenant` lists\n";

fn said(error: StoreError) -> String {
    format!("the store cannot be used: {error}")
}

fn unknown(name: &str) -> String {
    format!(
        "there is no conversation {name:?} here; `weir conversations list` lists those of a team \
         (--team) or a caller (--tenant)"
    )
}

async fn find(store: &Store, tenant: Tenant, name: &str) -> Result<Conversation, String> {
    let found = store.conversation(tenant, name, now_ms()).await.map_err(said)?;
    found.ok_or_else(|| unknown(name))
}

async fn all(store: &Store, tenant: Tenant) -> Result<Vec<ConversationFacts>, String> {
    let mut all: Vec<ConversationFacts> = Vec::new();
    loop {
        let after = all.last().map_or("", |facts| facts.name.as_str());
        let page = store.list_conversations(tenant, after, now_ms()).await.map_err(said)?;
        let is_last = page.len() < MAX_PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

/// Formats conversations as a table, times in UTC.
fn table(all: &[ConversationFacts]) -> String {
    let rows = all.iter().map(|facts| {
        [
            facts.name.clone(),
            facts.messages.to_string(),
            facts.bytes.to_string(),
            facts.last_message_ms.map(moment).unwrap_or_default(),
            moment(facts.expires_ms),
        ]
    });
    left_aligned(["NAME", "MESSAGES", "BYTES", "LAST MESSAGE", "KEPT UNTIL"], rows)
}
