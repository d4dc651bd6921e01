//! `weir keys`: manages virtual keys in the store, whether or not a weir serves from it.
//! `store::keys` implements the operations.

use clap::{Args, Subcommand};
use std::io::Read as _;

use super::colours::Colours;
use super::moments::{moment, span_ms};
use super::store_path::{self, StoreArgs};
use super::table::left_aligned;
use crate::config::{AuthMode, Config};
use crate::proxy::hold::budgets::scope;
use weir_store::keys::{
    Issued, KeyChange, KeyError, KeyFacts, KeySettings, KeyStatus, MAX_PAGE, MAX_PROFILE_BYTES,
    NewKey, SecretFacts, check_profile,
};
use weir_store::{Store, now_ms};

const EXAMPLES: &str = "\
Examples:
  weir keys create ci --team search --models 'gpt-4o*,o3'
      creates a key and shows its secret, this once
  weir keys list --team search
  weir keys show ci
  weir keys limit key_0123456789ab --tokens-per-minute 100000
  weir keys rotate key_0123456789ab --overlap 24h
      gives it a new secret; the old one stays valid for another day
  weir keys revoke key_0123456789ab
      revokes it, from its next request on

Keys are checked if auth.mode is \"keys\". These commands work on the store, also while weir \
serves from it: give them the same --config or --store.";

/// Creates, shows, limits, rotates and revokes virtual keys
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
    #[command(flatten)]
    store: StoreArgs,
    /// Prints JSON, in the form of the admin API
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Creates a key and shows its secret, this once
    #[command(after_help = EXAMPLES)]
    Create {
        /// Name of the key
        name: String,
        /// Its team, created if it does not exist; its keys share originals and usage [default:
        /// default]
        #[arg(long)]
        team: Option<String>,
        /// The organisation of a new team [default: default]
        #[arg(long)]
        organisation: Option<String>,
        #[command(flatten)]
        limits: KeyLimits,
    },
    /// Lists keys
    #[command(after_help = EXAMPLES)]
    List {
        /// Only keys of this team
        #[arg(long)]
        team: Option<String>,
        /// Also expired and revoked keys
        #[arg(long)]
        all: bool,
    },
    /// Shows one key
    #[command(after_help = EXAMPLES)]
    Show {
        /// The key's ID or name, as `weir keys list` shows it
        id: String,
    },
    /// Changes a key's permissions and limits; others stay
    #[command(after_help = EXAMPLES)]
    Limit {
        /// The key's ID or name, as `weir keys list` shows it
        id: String,
        /// New name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        limits: KeyLimits,
    },
    /// Gives a key a new secret and shows it, this once
    #[command(after_help = EXAMPLES)]
    Rotate {
        /// The key's ID or name, as `weir keys list` shows it
        id: String,
        /// How much longer the old secret stays valid, such as 24h
        #[arg(long, value_name = "SPAN", value_parser = span_ms, default_value = "0s")]
        overlap: u64,
    },
    /// Revokes a key permanently, from its next request on
    #[command(after_help = EXAMPLES)]
    Revoke {
        /// The key's ID or name, as `weir keys list` shows it
        id: String,
    },
}

/// Permissions and limits of a key.
#[derive(Debug, Args)]
struct KeyLimits {
    /// User that the key belongs to
    #[arg(long)]
    user: Option<String>,
    /// Models it may use, separated by commas; * matches any characters, `any` allows all
    #[arg(long, value_name = "PATTERNS", value_parser = names)]
    models: Option<String>,
    /// Policies its callers may choose with x-weir-policy, separated by commas; `configured` for
    /// those of context.allowed_policies
    #[arg(long, value_name = "NAMES", value_parser = names)]
    policies: Option<String>,
    /// Policy of its requests that choose none, or `none`
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Whether it may use routes that weir does not meter: files, batches, stored responses
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    passthrough: Option<bool>,
    /// Requests per minute, or `none`
    #[arg(long, value_name = "N", value_parser = limit)]
    requests_per_minute: Option<Given<u64>>,
    /// Tokens per minute, prompts and answers, or `none`
    #[arg(long, value_name = "N", value_parser = limit)]
    tokens_per_minute: Option<Given<u64>>,
    /// Whether these leave out cached tokens, and count when answered
    #[arg(long, value_name = "ON", num_args = 0..=1, default_missing_value = "true")]
    cached_tokens_free: Option<bool>,
    /// Simultaneous requests, or `none`
    #[arg(long, value_name = "N", value_parser = limit)]
    max_concurrent: Option<Given<u64>>,
    /// Equal calls with equal results in a row from which requests are refused, or `none`
    #[arg(long, value_name = "N", value_parser = limit)]
    max_repeats: Option<Given<u64>>,
    /// Whether its callers may keep conversations (x-weir-conversation), or `configured` for
    /// conversations.enabled
    #[arg(long, value_name = "true|false", value_parser = switch)]
    conversations: Option<Given<bool>>,
    /// File with the text that is put after the system text of its requests, or `configured` for
    /// context.profile
    #[arg(long, value_name = "FILE", value_parser = profile)]
    profile_file: Option<Given<String>>,
    /// Lifetime from now, such as 90d, or `never`
    #[arg(long, value_name = "SPAN", value_parser = expiry)]
    expires: Option<Given<u64>>,
}

/// Checks that a list is not empty: an empty one, such as from an unset variable, is a mistake.
fn names(text: &str) -> Result<String, String> {
    match text.split(',').any(|name| !name.trim().is_empty()) {
        true => Ok(text.to_owned()),
        false => Err("write names separated by commas; `any` opens every model, `configured` the \
                      policies of context.allowed_policies"
            .to_owned()),
    }
}

/// Value of a flag: set, or removed or left to the configuration. The name keeps clap from reading an
/// `Option` as a flag with an optional value.
pub(super) type Given<T> = Option<T>;

fn limit(text: &str) -> Result<Given<u64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let number = text.replace('_', "").parse();
    number.map(Some).map_err(|_| "write a number, or none".to_owned())
}

fn switch(text: &str) -> Result<Given<bool>, String> {
    match text {
        "configured" => Ok(None),
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        _ => Err("write true, false or configured".to_owned()),
    }
}

/// Reads a profile text; `configured` is none of its own.
pub(super) fn profile(path: &str) -> Result<Given<String>, String> {
    if path == "configured" {
        return Ok(None);
    }
    // One byte more shows that a file is too large.
    let max_bytes = MAX_PROFILE_BYTES as u64 + 1;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(max_bytes).read_to_string(&mut text))
        .map_err(|error| format!("cannot read the file: {error}"))?;
    let text = text.trim().to_owned();
    check_profile(&text).map_err(|message| format!("the text {message}"))?;
    Ok(Some(text))
}

fn expiry(text: &str) -> Result<Given<u64>, String> {
    if text == "never" { Ok(None) } else { span_ms(text).map(Some) }
}

impl KeyLimits {
    fn change(&self, name: Option<&str>, now_ms: u64) -> KeyChange {
        let list = |shown: &Option<String>, all: &str| {
            let shown = shown.as_deref()?;
            let items = shown.split(',').map(str::trim).filter(|item| !item.is_empty());
            let items: Vec<String> = items.map(str::to_owned).collect();
            Some(if shown == all { Vec::new() } else { items })
        };
        let policy = self.policy.as_ref();
        KeyChange {
            name: name.map(str::to_owned),
            user: self.user.clone(),
            models: list(&self.models, "any"),
            policies: list(&self.policies, "configured"),
            policy: policy.map(|policy| Some(policy.clone()).filter(|policy| policy != "none")),
            passthrough: self.passthrough,
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            cached_tokens_free: self.cached_tokens_free,
            max_concurrent: self.max_concurrent,
            max_repeats: self.max_repeats,
            conversations: self.conversations,
            profile: self.profile_file.clone(),
            expires_ms: self.expires.map(|span| span.map(|span_ms| now_ms.saturating_add(span_ms))),
        }
    }
}

/// Runs `weir keys …`.
pub(super) fn run(args: &KeysArgs) -> Result<(), String> {
    let config = args.store.configuration()?;
    let store = store_path::kept(&config)?;
    super::block_on(act(args, &config, &store))
}

async fn act(args: &KeysArgs, config: &Config, store: &Store) -> Result<(), String> {
    let said = |error: KeyError| match error {
        KeyError::Unknown => format!("{error}; `weir keys list --all` lists them"),
        error => error.to_string(),
    };
    let now_ms = now_ms();
    let is_policy = |name: &str| config.context.policies.read_name(name);
    let facts = match &args.command {
        KeysCommand::Create { name, team, organisation, limits } => {
            let change = limits.change(Some(name), now_ms);
            change.check_policies(is_policy).map_err(said)?;
            let new = NewKey { team: team.clone(), organisation: organisation.clone(), change };
            warn_where_unchecked(config);
            let issued = store.create_key(new, now_ms).await.map_err(said)?;
            return show_issued(&issued, args.json, now_ms);
        }
        KeysCommand::List { team, all } => {
            let mut keys = all_keys(store, team.as_deref()).await?;
            keys.retain(|facts| *all || facts.key.status(now_ms) == KeyStatus::Live);
            return match args.json {
                true => print_json(&keys),
                false => super::print(&table(&keys, now_ms)),
            };
        }
        KeysCommand::Show { id } => store.show_key(&key_id(id, store).await?).await,
        KeysCommand::Limit { id, name, limits } => {
            let change = limits.change(name.as_deref(), now_ms);
            if change == KeyChange::default() {
                return Err(
                    "nothing to change; `weir keys limit --help` lists the settings".to_owned()
                );
            }
            change.check_policies(is_policy).map_err(said)?;
            store.change_key(&key_id(id, store).await?, change).await
        }
        KeysCommand::Rotate { id, overlap } => {
            let id = key_id(id, store).await?;
            let issued = store.rotate_key(&id, *overlap, now_ms).await.map_err(said)?;
            warn_where_unchecked(config);
            return show_issued(&issued, args.json, now_ms);
        }
        KeysCommand::Revoke { id } => store.revoke_key(&key_id(id, store).await?, now_ms).await,
    };
    let facts = facts.map_err(said)?;
    match args.json {
        true => print_json(&facts),
        false => super::print(&shown(&facts, now_ms)),
    }
}

/// Returns the ID of the key with this ID or name. Only its ID finds a revoked key.
async fn key_id(name: &str, store: &Store) -> Result<String, String> {
    Ok(scope::key_id(name, store).await?.unwrap_or_else(|| name.to_owned()))
}

/// Warns if no weir with this configuration checks keys, unless the output is JSON.
fn warn_where_unchecked(config: &Config) {
    if config.auth.mode == AuthMode::Keys {
        return;
    }
    eprintln!(
        "warning: keys are not checked: auth.mode is \"open\" in this configuration. A weir that \
         runs with it refuses virtual keys. Set mode = \"keys\" under [auth], or \
         WEIR_AUTH__MODE=keys."
    );
}

/// Lists all keys, of all teams or one, by team and name.
async fn all_keys(store: &Store, team: Option<&str>) -> Result<Vec<KeyFacts>, String> {
    let mut keys: Vec<KeyFacts> = Vec::new();
    loop {
        let after = keys.last().map_or("", |facts| facts.key.id.as_str());
        let page = store.list_keys(team, after).await.map_err(|error| error.to_string())?;
        let is_last = page.len() < MAX_PAGE;
        keys.extend(page);
        if is_last {
            break;
        }
    }
    keys.sort_by_cached_key(|facts| (facts.key.team.clone(), facts.key.name.clone()));
    Ok(keys)
}

fn print_json(value: &impl serde::Serialize) -> Result<(), String> {
    super::print(&(serde_json::to_string(value).map_err(|error| error.to_string())? + "\n"))
}

fn show_issued(issued: &Issued, json: bool, now_ms: u64) -> Result<(), String> {
    if json {
        return super::print(&(issued.json() + "\n"));
    }
    super::print(&format!(
        "{}\n{}\n\nThis secret is shown once and not stored. Give it to the SDK as its API key.\n",
        shown(&issued.facts, now_ms),
        issued.secret.expose()
    ))
}

/// Formats a key, one line per fact.
fn shown(facts: &KeyFacts, now_ms: u64) -> String {
    let key = &facts.key;
    let settings = &key.settings;
    let number = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |n| n.to_string());
    let list = |items: &[String], all: &str| match items {
        [] => all.to_owned(),
        items => items.join(", "),
    };
    let secrets: Vec<String> = facts.secrets.iter().map(secret_line).collect();
    let rows = [
        ("id", key.id.clone()),
        ("name", key.name.clone()),
        ("state", state(facts, now_ms)),
        ("organisation", key.organisation.clone()),
        ("team", key.team.clone()),
        ("user", key.user.clone()),
        ("models", list(&settings.models, "any")),
        ("policies", list(&settings.policies, "as configured")),
        ("policy", settings.policy.clone().unwrap_or_else(|| "as configured".to_owned())),
        ("passthrough", if settings.passthrough { "yes" } else { "no" }.to_owned()),
        ("requests a minute", number(settings.requests_per_minute)),
        ("tokens a minute", number(settings.tokens_per_minute)),
        ("cached tokens", if settings.cached_tokens_free { "free" } else { "count" }.to_owned()),
        ("requests at once", number(settings.max_concurrent)),
        ("equal calls", number(settings.max_repeats)),
        (
            "conversations",
            match settings.conversations {
                Some(true) => "yes",
                Some(false) => "no",
                None => "as configured",
            }
            .to_owned(),
        ),
        (
            "profile",
            settings
                .profile
                .as_ref()
                .map_or("as configured".to_owned(), |text| format!("{} bytes", text.len())),
        ),
        ("made", moment(key.created_ms)),
        ("secrets", secrets.join(", ")),
    ];
    rows.iter()
        .map(|(name, value)| format!("{name:<18} {value}").trim_end().to_owned() + "\n")
        .collect()
}

fn secret_line(secret: &SecretFacts) -> String {
    match secret.expires_ms {
        Some(end_ms) => format!("{} (until {})", secret.hint, moment(end_ms)),
        None => secret.hint.clone(),
    }
}

fn state(facts: &KeyFacts, now_ms: u64) -> String {
    let key = &facts.key;
    match (key.status(now_ms), key.revoked_ms, key.expires_ms) {
        (KeyStatus::Revoked, Some(moment_ms), _) => format!("revoked {}", moment(moment_ms)),
        (KeyStatus::Expired, _, Some(moment_ms)) => format!("expired {}", moment(moment_ms)),
        (_, _, Some(moment_ms)) => format!("until {}", moment(moment_ms)),
        _ => "live".to_owned(),
    }
}

/// Formats keys as a table, times in UTC.
fn table(keys: &[KeyFacts], now_ms: u64) -> String {
    if keys.is_empty() {
        return "there are no live keys here; `weir keys create NAME` makes one, and `weir keys \
                list --all` also lists those that have ended\n"
            .to_owned();
    }
    let rows = keys.iter().map(|facts| {
        let key = &facts.key;
        let models = match key.settings.models.as_slice() {
            [] => "any".to_owned(),
            models => models.join(","),
        };
        let (name, team, user) = (key.name.clone(), key.team.clone(), key.user.clone());
        [key.id.clone(), name, team, user, models, limits(&key.settings), state(facts, now_ms)]
    });
    Colours::of_stdout()
        .head(&left_aligned(["ID", "NAME", "TEAM", "USER", "MODELS", "LIMITS", "STATE"], rows))
}

fn limits(settings: &KeySettings) -> String {
    let tokens = if settings.cached_tokens_free { " uncached tok/min" } else { " tok/min" };
    let limits = [
        (settings.requests_per_minute, " req/min"),
        (settings.tokens_per_minute, tokens),
        (settings.max_concurrent, " at once"),
        (settings.max_repeats, " equal calls"),
    ];
    let mut said: Vec<String> =
        limits.iter().filter_map(|(limit, unit)| limit.map(|n| format!("{n}{unit}"))).collect();
    if settings.passthrough {
        said.push("passthrough".to_owned());
    }
    if said.is_empty() { "none".to_owned() } else { said.join(", ") }
}
