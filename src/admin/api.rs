//! Routes of the admin API: parses requests on keys and budgets and renders the results.

use http::{Method, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AdminState, METRICS, Refusal, organization, refused};
use crate::proxy::hold::budgets::scope::resolve;
use weir_store::budget::{Budget, BudgetId, Measure, NanoUsd, Scope, Window};
use weir_store::budgets::BudgetError;
use weir_store::counters::{Counters, Listed};
use weir_store::keys::{KeyChange, KeyError, MAX_PAGE, NewKey};
use weir_store::{StoreError, now_ms};

/// Path prefix of all routes.
const ROOT: &str = "/admin/v1/";

/// Page of a list. `next` is the value of `after` for the next page.
#[derive(Serialize)]
struct ListPage<'a, T> {
    object: &'static str,
    data: &'a [T],
    next: Option<&'a str>,
}

/// Request body of a key rotation.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rotation {
    /// Milliseconds for which the old secret stays valid.
    overlap_ms: u64,
}

/// Request body that sets a budget.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedBudget {
    scope: String,
    per: String,
    /// Dollars, as text or a number.
    usd: Option<Value>,
    tokens: Option<u64>,
    /// Share from 0 to 1.
    warn_at: Option<f64>,
}

impl WantedBudget {
    fn budget(&self) -> Result<Budget, String> {
        let (measure, limit) = match (&self.usd, self.tokens) {
            (Some(usd), None) => {
                let text = usd.as_str().map_or_else(|| usd.to_string(), str::to_owned);
                let NanoUsd(amount) = NanoUsd::parse(&text).ok_or_else(|| {
                    format!("usd is {text:.40}; it must be {}, such as \"12.50\"", NanoUsd::FORM)
                })?;
                (Measure::NanoUsd, amount)
            }
            (None, Some(tokens)) => (Measure::Tokens, tokens),
            _ => return Err("give usd or tokens, and not both".to_owned()),
        };
        let id = BudgetId {
            scope: Scope::parse(&self.scope)?,
            measure,
            window: Window::parse(&self.per)?,
        };
        let share = self.warn_at.unwrap_or(0.8);
        if !(0.0..=1.0).contains(&share) {
            return Err("warn_at must be a share from 0 to 1".to_owned());
        }
        let warn_permille = Some((share * 1000.0).round() as u16).filter(|permille| *permille > 0);
        Ok(Budget { id, limit, warn_permille })
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string())
    }
}

impl From<BudgetError> for Refusal {
    fn from(error: BudgetError) -> Self {
        match error {
            BudgetError::Invalid(said) => refused(said),
            BudgetError::TooMany => {
                Self::new(StatusCode::CONFLICT, "too_many_budgets", error.to_string())
            }
            BudgetError::Store(error) => error.into(),
        }
    }
}

/// Answer to a request: status and JSON.
pub(super) type Answer = Result<(StatusCode, String), Refusal>;

impl AdminState {
    /// Routes a request to its action.
    pub(super) async fn act(&self, method: &Method, uri: &Uri, body: &[u8]) -> Answer {
        if uri.path() == METRICS {
            return self.metrics(method).await;
        }
        if let Some(page) = organization::Page::at(uri.path()) {
            return self.organization(page, method, uri).await;
        }
        let path = uri.path().strip_prefix(ROOT).unwrap_or_default();
        let names: Vec<&str> = path.split('/').collect();
        match (method.as_str(), names.as_slice()) {
            ("GET", ["keys"]) => self.list_keys(uri).await,
            ("POST", ["keys"]) => self.create(body).await,
            ("GET", ["keys", id]) => done(&self.store.show_key(id).await?),
            ("PATCH", ["keys", id]) => self.change(id, body).await,
            ("POST", ["keys", id, "rotate"]) => self.rotate(id, body).await,
            ("POST", ["keys", id, "revoke"]) | ("DELETE", ["keys", id]) => {
                let revoked = self.store.revoke_key(id, now_ms()).await?;
                acted("revoke", &revoked.key.id);
                done(&revoked)
            }
            ("GET", ["teams"]) => self.list_teams(uri).await,
            ("GET", ["budgets"]) => self.statuses(self.store.budgets().await?.1).await,
            ("PUT", ["budgets"]) => self.set_budget(body).await,
            ("DELETE", ["budgets"]) => self.remove_budget(uri).await,
            ("GET", ["live"]) => self.live(uri),
            ("GET", ["usage"]) => self.usage(uri).await,
            ("GET", ["status"]) => self.status().await,
            ("GET", ["inspect"]) => self.inspection_choices(),
            ("POST", ["inspect"]) => self.inspect(body).await,
            ("GET", ["conversations"]) => self.recent_conversations(),
            ("GET", ["conversations", id]) => self.recent_conversation(id),
            (_, ["conversations"] | ["conversations", _]) => Err(Refusal::method("GET")),
            (_, ["inspect"]) => Err(Refusal::method("GET, POST")),
            (_, ["keys"]) => Err(Refusal::method("GET, POST")),
            (_, ["keys", _]) => Err(Refusal::method("GET, PATCH, DELETE")),
            (_, ["keys", _, "rotate" | "revoke"]) => Err(Refusal::method("POST")),
            (_, ["teams" | "live" | "usage" | "status"]) => Err(Refusal::method("GET")),
            (_, ["budgets"]) => Err(Refusal::method("GET, PUT, DELETE")),
            _ => {
                let message = "The admin API has /admin/v1/keys, /admin/v1/keys/ID (and /rotate and \
                               /revoke behind it), /admin/v1/teams, /admin/v1/budgets, \
                               /admin/v1/usage, /admin/v1/live, /admin/v1/status, \
                               /admin/v1/conversations and \
                               /admin/v1/inspect.";
                Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", message))
            }
        }
    }

    async fn list_keys(&self, uri: &Uri) -> Answer {
        let [team, after] = query(uri, ["team", "after"])?;
        let keys = self.store.list_keys(team.as_deref(), after.as_deref().unwrap_or("")).await?;
        page(&keys, |facts| &facts.key.id)
    }

    async fn list_teams(&self, uri: &Uri) -> Answer {
        let [after] = query(uri, ["after"])?;
        let teams = self.store.list_teams(after.as_deref().unwrap_or("")).await?;
        page(&teams, |team| &team.name)
    }

    async fn metrics(&self, method: &Method) -> Answer {
        match *method {
            Method::GET => Ok((StatusCode::OK, self.serving()?.metrics_page().await)),
            _ => Err(Refusal::method("GET")),
        }
    }

    /// Reports the state of budgets from the store.
    async fn statuses(&self, budgets: Vec<Budget>) -> Answer {
        let counters = Counters::in_memory(self.store.clone(), self.time_zone.clone());
        let listed = counters.listed(&self.store, budgets, now_ms()).await?;
        let data: Vec<Value> = listed.iter().map(Listed::json).collect();
        done(&serde_json::json!({"object": "list", "data": data}))
    }

    async fn set_budget(&self, body: &[u8]) -> Answer {
        let wanted: WantedBudget = read(body)?;
        let mut budget = wanted.budget().map_err(refused)?;
        let rules = self.rules();
        let scope = resolve(budget.id.scope, &rules.models, &rules.routes, &self.store).await;
        budget.id.scope = scope.map_err(refused)?;
        self.store.set_budget(budget.clone(), now_ms()).await?;
        acted("set_budget", &budget.id.to_string());
        self.statuses(vec![budget]).await
    }

    async fn remove_budget(&self, uri: &Uri) -> Answer {
        let [id] = query(uri, ["id"])?;
        let id = BudgetId::parse(&id.unwrap_or_default()).map_err(refused)?;
        if !self.store.remove_budget(&id).await? {
            let message = format!("there is no budget {id}");
            return Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", message));
        }
        acted("remove_budget", &id.to_string());
        done(&serde_json::json!({"object": "budget", "id": id.to_string(), "deleted": true}))
    }

    async fn create(&self, body: &[u8]) -> Answer {
        let mut members: serde_json::Map<String, Value> = read(body)?;
        let team = text(&mut members, "team")?;
        let organisation = text(&mut members, "organisation")?;
        let members = Value::Object(members).to_string();
        let change: KeyChange = read(members.as_bytes()).map_err(|mut refusal| {
            let (own, all) = ("one of `name`", "one of `team`, `organisation`, `name`");
            refusal.message = refusal.message.replacen(own, all, 1);
            refusal
        })?;
        let now_ms = now_ms();
        check_expiry(&change, now_ms)?;
        change.check_policies(|name| self.rules().policies.read_name(name))?;
        let issued = self.store.create_key(NewKey { team, organisation, change }, now_ms).await?;
        acted("create", &issued.facts.key.id);
        Ok((StatusCode::CREATED, issued.json()))
    }

    async fn change(&self, id: &str, body: &[u8]) -> Answer {
        let change: KeyChange = read(body)?;
        check_expiry(&change, now_ms())?;
        change.check_policies(|name| self.rules().policies.read_name(name))?;
        let changed = self.store.change_key(id, change).await?;
        acted("limit", &changed.key.id);
        done(&changed)
    }

    async fn rotate(&self, id: &str, body: &[u8]) -> Answer {
        let rotation = if body.is_empty() { Rotation::default() } else { read(body)? };
        let issued = self.store.rotate_key(id, rotation.overlap_ms, now_ms()).await?;
        acted("rotate", &issued.facts.key.id);
        Ok((StatusCode::OK, issued.json()))
    }
}

/// Logs an action and the key it changed.
fn acted(action: &'static str, key: &str) {
    tracing::info!(target: "weir::admin", action, key, "changed through the admin API");
}

pub(super) fn done(value: &impl Serialize) -> Answer {
    let json = serde_json::to_string(value).expect("texts and numbers under fixed keys are JSON");
    Ok((StatusCode::OK, json))
}

fn page<T: Serialize>(data: &[T], place: impl Fn(&T) -> &str) -> Answer {
    let last = if data.len() < MAX_PAGE { None } else { data.last() };
    done(&ListPage { object: "list", data, next: last.map(place) })
}

/// Refuses a key that would have expired already.
fn check_expiry(change: &KeyChange, now_ms: u64) -> Result<(), Refusal> {
    match change.expires_ms.flatten() {
        Some(expires_ms) if expires_ms <= now_ms => Err(refused(format!(
            "expires_ms is {expires_ms}, which has passed; it is in milliseconds since 1970, now \
             {now_ms}"
        ))),
        _ => Ok(()),
    }
}

pub(super) fn read<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let field = misfit::<T>(body).map(|field| format!("{field}: "));
        let said = plain(&error.to_string());
        refused(format!("The body does not fit this request: {}{said}.", field.unwrap_or_default()))
    })
}

/// Returns the first member of a body that cannot be part of a `T`.
fn misfit<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Option<String> {
    let members: serde_json::Map<String, Value> = serde_json::from_slice(body).ok()?;
    members.into_iter().find_map(|(name, value)| {
        let alone = Value::Object([(name.clone(), value)].into_iter().collect());
        let error = serde_json::from_value::<T>(alone).err()?.to_string();
        let is_own = !(error.starts_with("missing field") || error.starts_with("unknown field"));
        is_own.then_some(name)
    })
}

/// Replaces the names of Rust's types in an error by those of JSON.
fn plain(error: &str) -> String {
    let words = [
        ("expected u64", "expected a whole number from 0 to 18446744073709551615"),
        ("expected f64", "expected a number"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected an object"),
        ("expected a boolean", "expected true or false"),
        ("invalid type: map", "invalid type: object"),
        ("invalid type: sequence", "invalid type: list"),
    ];
    let mut said = words.iter().fold(error.to_owned(), |said, (own, json)| said.replace(own, json));
    if let Some(at) = said.find("expected struct ") {
        let end = said[at..].find(" at line").map_or(said.len(), |length| at + length);
        said.replace_range(at..end, "expected an object");
    }
    said
}

fn text(
    members: &mut serde_json::Map<String, Value>,
    name: &'static str,
) -> Result<Option<String>, Refusal> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(refused(format!("{name} must be a string"))),
    }
}

/// Parses the query parameters.
pub(super) fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Refusal> {
    let url = format!("http://localhost/?{}", uri.query().unwrap_or_default());
    let url = reqwest::Url::parse(&url).map_err(|error| refused(error.to_string()))?;
    Ok(url.query_pairs().into_owned().collect())
}

/// Parses the query parameters of these names; refuses others.
pub(super) fn query<const N: usize>(
    uri: &Uri,
    names: [&str; N],
) -> Result<[Option<String>; N], Refusal> {
    let mut found = [const { None }; N];
    for (name, value) in pairs(uri)? {
        let Some(place) = names.iter().position(|known| *known == name) else {
            let names = names.join(", ");
            return Err(refused(format!("Unknown parameter. This path takes: {names}.")));
        };
        found[place] = Some(value);
    }
    Ok(found)
}

impl From<KeyError> for Refusal {
    fn from(error: KeyError) -> Self {
        let (status, code) = match &error {
            KeyError::Unknown => (StatusCode::NOT_FOUND, "not_found"),
            KeyError::Revoked => (StatusCode::CONFLICT, "revoked"),
            KeyError::Invalid { .. } => (StatusCode::BAD_REQUEST, "invalid_request"),
            KeyError::TeamElsewhere { .. } => (StatusCode::CONFLICT, "team_elsewhere"),
            KeyError::TooMany => (StatusCode::CONFLICT, "too_many_keys"),
            KeyError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
        };
        Self::new(status, code, error.to_string())
    }
}
