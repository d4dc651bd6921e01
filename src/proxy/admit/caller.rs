//! Permissions of a caller: routes, models, policies. Only decides; looks nothing up and counts
//! nothing.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};

use crate::config::{Routes, names};
use crate::proxy::error::{ErrorKind, ProxyError};
use crate::upstream::{Endpoint, Naming, Route, Target};
use weir_engine::wire::allowance::{self, MAX_GROUPS};
use weir_engine::wire::body::FALLBACKS;
use weir_engine::wire::form;
use weir_engine::wire::json;
use weir_store::Tenant;
use weir_store::keys::VirtualKey;

/// Request members that refer to something stored at the provider, or that store something there
/// whose usage is not seen.
const STORED: [&str; 4] = ["previous_response_id", "conversation", "prompt", "background"];

/// Sender of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Owner of everything that is stored for the caller.
    pub tenant: Tenant,
    /// `None` in open mode, where the caller's own key decides its permissions.
    pub key: Option<Arc<VirtualKey>>,
    /// Address of its connection, if known. Only for the log.
    pub address: Option<IpAddr>,
    /// Number of changes of keys and budgets at admission, if it was checked. Later changes count
    /// from the next request on.
    pub as_of: Option<u64>,
}

impl Caller {
    /// Creates a caller with an unknown address.
    pub fn new(tenant: Tenant, key: Option<Arc<VirtualKey>>) -> Self {
        Self { tenant, key, address: None, as_of: None }
    }

    /// Refuses routes that the caller may not use.
    pub fn check_route(
        &self,
        method: &Method,
        target: &Target,
        routes: &Routes,
    ) -> Result<(), ProxyError> {
        let Some(key) = &self.key else { return Ok(()) };
        if self.has_own_models() {
            target.query_models().try_for_each(|model| self.check_model(&model, routes))?;
        }
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        match target.endpoint() {
            Endpoint::Route(_) | Endpoint::Count if *method == Method::POST => Ok(()),
            Endpoint::Models if is_read => Ok(()),
            Endpoint::Model(model) if is_read => self.check_model(model, routes),
            // Google's API has `models/NAME:ACTION`, others `models/NAME/ACTION`.
            Endpoint::Model(model) if key.settings.passthrough => {
                let name = model.split_once([':', '/']).map_or(model.as_str(), |(name, _)| name);
                self.check_model(model, routes).or_else(|refused| match name == model {
                    true => Err(refused),
                    false => self.check_model(name, routes),
                })
            }
            _ if key.settings.passthrough => Ok(()),
            _ => Err(needs_passthrough(
                "This key has no access to this route: weir does not meter it, or its data is \
                 stored at the provider for all keys together.",
            )),
        }
    }

    /// Whether the body of a request must be read before it is forwarded.
    pub fn needs_body(&self, method: &Method, target: &Target) -> bool {
        match target.endpoint() {
            Endpoint::Route(_) | Endpoint::Count if *method == Method::POST => self.key.is_some(),
            Endpoint::Other(Naming::Nowhere) => false,
            _ if matches!(*method, Method::GET | Method::HEAD | Method::DELETE) => false,
            _ => self.has_own_models(),
        }
    }

    /// Refuses a body that asks for a forbidden model or for something stored, or whose models cannot
    /// be known although the caller may use only some. A conversation's model is checked when it is
    /// planned; see [`Self::check_model`].
    pub fn check_body(
        &self,
        target: &Target,
        headers: &HeaderMap,
        body: &[u8],
        routes: &Routes,
    ) -> Result<(), ProxyError> {
        match target.endpoint() {
            Endpoint::Route(_) | Endpoint::Count => self.check_members(target, body, routes),
            Endpoint::Other(_) if !self.has_own_models() => Ok(()),
            Endpoint::Other(Naming::Body) => {
                let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                let content_type = content_type.unwrap_or_default();
                if !content_type.trim_start().to_ascii_lowercase().starts_with("multipart/") {
                    return self.check_members(target, body, routes);
                }
                let model = target.asked_model().or_else(|| form::only_model(content_type, body));
                self.check_model(&model.unwrap_or_default(), routes)
            }
            Endpoint::Other(Naming::Requests) => {
                let requests =
                    std::str::from_utf8(body).ok().and_then(|text| only(text, "requests"));
                let requests = requests.and_then(json::elements).ok_or_else(|| {
                    let message = "The body must be a JSON object with a list 'requests'.";
                    ProxyError::new(ErrorKind::InvalidRequest, message)
                })?;
                requests.into_iter().try_for_each(|request| {
                    let params = only(request, "params").unwrap_or_default();
                    self.check_members(target, params.as_bytes(), routes)
                })
            }
            Endpoint::Other(Naming::Optional) if runs_model(body) => {
                self.check_members(target, body, routes)
            }
            Endpoint::Other(Naming::Nowhere | Naming::Optional)
            | Endpoint::Models
            | Endpoint::Model(_) => Ok(()),
            Endpoint::Other(Naming::Unseen) => Err(ProxyError::new(
                ErrorKind::ModelNotAllowed,
                "This key is limited to some models, and weir does not see which ones a request to this \
                 route uses.",
            )),
        }
    }

    /// Refuses an object that names a forbidden model, or refers to something stored.
    fn check_members(
        &self,
        target: &Target,
        body: &[u8],
        routes: &Routes,
    ) -> Result<(), ProxyError> {
        let Some(key) = &self.key else { return Ok(()) };
        let members = std::str::from_utf8(body).ok().and_then(json::unique_members);
        let Some(members) = members else {
            return Err(ProxyError::new(
                ErrorKind::InvalidRequest,
                "The body must be a JSON object that gives each member once.",
            ));
        };
        let known = |name| {
            let lists: [&[_]; 3] = [&["model"], &FALLBACKS, &STORED];
            lists.into_iter().find_map(|known| json::known_in_other_case(name, known))
        };
        let other_case = members.iter().find_map(|(name, _)| Some((name, known(name)?)));
        if let Some((name, known)) = other_case {
            let message = json::other_case_message(name, known);
            return Err(ProxyError::new(ErrorKind::InvalidRequest, message));
        }
        let is = |raw: &str, empty: [&str; 2]| empty.contains(&raw.trim());
        let stored = members
            .iter()
            .find(|(name, raw)| STORED.contains(&name.as_ref()) && !is(raw, ["null", "false"]));
        let is_responses = matches!(
            target.endpoint(),
            Endpoint::Route(Route::Responses | Route::Compact) | Endpoint::Count
        );
        if let Some((name, _)) = stored.filter(|_| is_responses && !key.settings.passthrough) {
            let message =
                format!("This key has no access to '{name}': it is stored at the provider.");
            return Err(ProxyError {
                param: Some(name.to_string()),
                ..needs_passthrough(&message)
            });
        }
        members
            .iter()
            .try_for_each(|(name, raw)| self.check_member((name, raw), routes, MAX_GROUPS))?;
        if let Some(model) = target.asked_model() {
            return self.check_model(&model, routes);
        }
        // With routes, the body's model takes precedence over that of the default upstream's base.
        let of_base = target.path_model.as_deref();
        if let Some(model) = of_base.filter(|_| routes.rows.is_empty()) {
            return self.check_model(model, routes);
        }
        match members.iter().find(|(name, _)| name == "model") {
            Some((_, raw)) => match json::string(raw) {
                Some(model) => self.check_model(&model, routes),
                None => {
                    Err(ProxyError::new(ErrorKind::InvalidRequest, "'model' must be a string.")
                        .about("model"))
                }
            },
            // The provider has a default for some routes.
            None => self.check_model(of_base.unwrap_or_default(), routes),
        }
    }

    /// Refuses a conversation kept by the provider, if the caller has no right to what is stored there.
    /// `member` is the one that refers to it.
    pub fn check_provider_state(&self, member: Option<&'static str>) -> Result<(), ProxyError> {
        let is_allowed = self.key.as_ref().is_none_or(|key| key.settings.passthrough);
        let Some(member) = member.filter(|_| !is_allowed) else { return Ok(()) };
        let message =
            format!("This key has no access to '{member}': it is stored at the provider.");
        Err(ProxyError { param: Some(member.to_owned()), ..needs_passthrough(&message) })
    }

    /// Refuses a conversation that names fallback models, which some providers use instead of the
    /// first, if the caller may not use them.
    pub fn check_conversation(&self, body: &[u8], routes: &Routes) -> Result<(), ProxyError> {
        if self.key.as_ref().is_none_or(|key| key.settings.models.is_empty()) {
            return Ok(());
        }
        let Ok(text) = simdutf8::basic::from_utf8(body) else { return Ok(()) };
        let members = json::members(text).unwrap_or_default();
        members
            .iter()
            .try_for_each(|(name, raw)| self.check_member((name, raw), routes, MAX_GROUPS))
    }

    /// Refuses other models than that of `model` which a member of a body names, if they are forbidden.
    /// Groups of members are read to this depth.
    fn check_member(
        &self,
        (name, raw): (&str, &str),
        routes: &Routes,
        depth: u32,
    ) -> Result<(), ProxyError> {
        match name {
            "tools" => self.check_tools(raw, routes),
            // Tools that stand between messages (Responses).
            "input" => allowance::items_tools(raw)
                .into_iter()
                .try_for_each(|tools| self.check_tools(tools, routes)),
            // OpenRouter: plugins that run models, and settings under a name.
            "plugins" => {
                self.check_inner(json::elements(raw).unwrap_or_default().into_iter(), routes)
            }
            "preset" if raw.trim() != "null" && self.has_own_models() => {
                let message = "This key is limited to some models, and a preset may name others.";
                Err(ProxyError::new(ErrorKind::ModelNotAllowed, message).about(name))
            }
            // The settings of Vercel's gateway, too.
            "extra_body" | "providerOptions" | "provider_options" | "gateway" if depth > 0 => {
                let members = json::members(raw).unwrap_or_default();
                self.check_inner([raw].into_iter(), routes)?;
                let mut inner = members.iter();
                inner.try_for_each(|(own, raw)| self.check_member((own, raw), routes, depth - 1))
            }
            name if FALLBACKS.contains(&name) => self.check_fallbacks(raw, routes),
            _ => Ok(()),
        }
    }

    /// Refuses forbidden models that some objects name for inferences of their own.
    fn check_inner<'a>(
        &self,
        mut objects: impl Iterator<Item = &'a str>,
        routes: &Routes,
    ) -> Result<(), ProxyError> {
        objects.try_for_each(|object| self.check_names(allowance::inner_models(object), routes))
    }

    fn check_names(&self, names: Vec<Cow<'_, str>>, routes: &Routes) -> Result<(), ProxyError> {
        names.iter().try_for_each(|model| self.check_model(model, routes))
    }

    fn check_fallbacks(&self, raw: &str, routes: &Routes) -> Result<(), ProxyError> {
        if raw.trim() == "null" {
            return Ok(());
        }
        self.check_names(allowance::models_in(raw), routes)
    }

    /// Refuses tools that run on a forbidden model, such as an advisor.
    fn check_tools(&self, raw: &str, routes: &Routes) -> Result<(), ProxyError> {
        // A model of a function's own parameters is none.
        let is_callers = |tool: &str| {
            let members = json::members(tool).unwrap_or_default();
            let of = |name| members.iter().filter(move |(own, _)| own == name);
            match of("type").next() {
                None => of("input_schema").next().is_some(),
                // Of two a provider may read either.
                Some(_) => {
                    of("type").all(|(_, kind)| [r#""function""#, r#""custom""#].contains(kind))
                }
            }
        };
        let tools = json::elements(raw).unwrap_or_default();
        let tools = tools.into_iter().filter(|tool| !is_callers(tool));
        self.check_inner(tools, routes)
    }

    /// Refuses models that the caller may not use, by their catalogue names: a provider's prefix
    /// makes no difference unless it selects another route.
    pub fn check_model(&self, model: &str, routes: &Routes) -> Result<(), ProxyError> {
        let Some(key) = &self.key else { return Ok(()) };
        let patterns = &key.settings.models;
        let way = routes.find(model);
        let mut candidates = names::candidates(model);
        candidates.retain(|name| routes.find(name) == way);
        let fits = |pattern: &String| {
            let pattern = pattern.to_ascii_lowercase();
            candidates.iter().any(|name| names::fits_pattern(name, &pattern))
        };
        if patterns.is_empty() || patterns.iter().any(fits) {
            return Ok(());
        }
        let problem = match model.is_empty() {
            true => "This key is limited to some models, and the request names none",
            false => "This key has no access to the model that the request names",
        };
        let message = format!("{problem}. It may use: {}.", patterns.join(", "));
        Err(ProxyError::new(ErrorKind::ModelNotAllowed, message).about("model"))
    }

    /// Whether the caller may use only some models.
    pub fn has_own_models(&self) -> bool {
        self.key.as_ref().is_some_and(|key| !key.settings.models.is_empty())
    }

    /// Whether the caller may keep conversations: by its key, or else as configured.
    pub fn keeps_conversations(&self, configured: bool) -> bool {
        let key = self.key.as_ref().and_then(|key| key.settings.conversations);
        key.unwrap_or(configured)
    }

    /// Returns the text that is put after the system text of its requests, if its key has one.
    pub fn profile(&self) -> Option<&str> {
        self.key.as_ref()?.settings.profile.as_deref()
    }

    /// Returns the policy of requests that name none, if the key sets one.
    pub fn policy(&self) -> Option<&str> {
        self.key.as_ref()?.settings.policy.as_deref()
    }

    /// Returns the number of equal calls in a row from which requests are refused, if the key sets one.
    pub fn max_repeats(&self) -> Option<u64> {
        self.key.as_ref()?.settings.max_repeats
    }

    /// Returns the policies that the caller may choose, if its key lists them.
    pub fn allowed_policies(&self) -> Option<&[String]> {
        let allowed = self.key.as_ref()?.settings.policies.as_slice();
        (!allowed.is_empty()).then_some(allowed)
    }
}

/// Whether the body of a request to a path that need not run a model asks for one.
pub fn runs_model(body: &[u8]) -> bool {
    let members = std::str::from_utf8(body).ok().and_then(json::members).unwrap_or_default();
    members.iter().any(|(name, _)| ["model", "agent_id", "inputs"].contains(&&**name))
}

/// Returns the member `name` of an object that gives each member once, in no other case either.
fn only<'a>(object: &'a str, name: &'static str) -> Option<&'a str> {
    let members = json::unique_members(object)?;
    let is_twin = |own: &str| json::known_in_other_case(own, &[name]).is_some();
    if members.iter().any(|(own, _)| is_twin(own)) {
        return None;
    }
    members.into_iter().find(|(own, _)| own == name).map(|(_, raw)| raw)
}

fn needs_passthrough(message: &str) -> ProxyError {
    let cure = "The operator can grant it with `weir keys limit ID --passthrough true`.";
    ProxyError::new(ErrorKind::PassthroughRequired, format!("{message} {cure}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Base;
    use weir_store::keys::KeySettings;

    fn caller(models: &[&str], passthrough: bool) -> Caller {
        let key = VirtualKey {
            id: "key_1".to_owned(),
            name: "a".to_owned(),
            organisation: "o".to_owned(),
            team: "t".to_owned(),
            user: String::new(),
            settings: KeySettings {
                models: models.iter().map(|&model| model.to_owned()).collect(),
                passthrough,
                ..KeySettings::default()
            },
            created_ms: 0,
            expires_ms: None,
            revoked_ms: None,
        };
        Caller::new(Tenant([1; 16]), Some(Arc::new(key)))
    }

    fn target(path: &str) -> Target {
        Target::map(&Base::parse("https://h/v1").expect("a base"), path).expect(path)
    }

    #[test]
    fn models_are_allowed_by_any_name_they_are_known_by() {
        let rows = [
            ("gpt-4o", &["gpt-4o"][..], true),
            ("GPT-4o", &["gpt-4O"], true),
            ("openai/gpt-4o", &["gpt-4o"], true),
            ("gpt-4o-mini", &["gpt-4o"], false),
            ("gpt-4o-mini", &["o3", "gpt-4o*"], true),
            ("azure/o3", &["openai/*"], false),
            ("anything", &[], true),
            ("", &["gpt-4o"], false),
            ("", &[], true),
            ("", &["*"], true),
        ];
        for (model, patterns, expected) in rows {
            let checked = caller(patterns, false).check_model(model, &Routes::default());
            assert_eq!(checked.is_ok(), expected, "{model} {patterns:?}");
        }
        let unnamed = caller(&["gpt-4o"], false).check_model("", &Routes::default());
        let message = unnamed.expect_err("it must name one").message;
        assert!(message.contains("the request names none. It may use: gpt-4o."), "{message}");
    }

    #[test]
    fn only_metered_routes_are_open_without_the_right() {
        let rows = [
            ("POST", "/v1/chat/completions", true),
            ("GET", "/v1/chat/completions", false),
            ("POST", "/v1/responses", true),
            ("DELETE", "/v1/responses", false),
            ("GET", "/v1/responses/resp_1", false),
            ("GET", "/v1/models", true),
            ("HEAD", "/v1/models/gpt-4o", true),
            ("GET", "/v1/models/o3", false),
            ("DELETE", "/v1/models/gpt-4o", false),
            ("POST", "/v1/messages/count_tokens", true),
            ("POST", "/v1/responses/input_tokens", true),
            ("GET", "/v1/files", false),
            ("POST", "/v1/batches", false),
            ("POST", "/v1/audio/transcriptions", false),
        ];
        for (method, path, expected) in rows {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            let check = |right| {
                caller(&["gpt-4o"], right).check_route(&method, &target(path), &Routes::default())
            };
            assert_eq!(check(false).is_ok(), expected, "{method} {path}");
            assert_eq!(check(true).is_ok(), path != "/v1/models/o3", "{method} {path}");
        }
    }

    #[test]
    fn bodies_name_a_model_that_is_allowed_and_nothing_stored() {
        let responses = "/v1/responses";
        let rows = [
            ("/v1/embeddings", r#"{"model":"gpt-4o","input":"x"}"#, None),
            ("/v1/embeddings", r#"{"model":"o3","input":"x"}"#, Some(ErrorKind::ModelNotAllowed)),
            ("/v1/moderations", r#"{"input":"x"}"#, Some(ErrorKind::ModelNotAllowed)),
            ("/v1/embeddings", r#"{"model":3}"#, Some(ErrorKind::InvalidRequest)),
            (
                "/v1/embeddings",
                r#"{"model":"gpt-4o","mod\u0065l":"o3"}"#,
                Some(ErrorKind::InvalidRequest),
            ),
            ("/v1/embeddings", "--boundary", Some(ErrorKind::InvalidRequest)),
            ("/openai/deployments/gpt-4o/embeddings", r#"{"model":"o3"}"#, None),
            (
                responses,
                r#"{"model":"gpt-4o","previous_response_id":null,"background":false}"#,
                None,
            ),
            (
                responses,
                r#"{"model":"gpt-4o","previous_response_id":"resp_1"}"#,
                Some(ErrorKind::PassthroughRequired),
            ),
            (
                responses,
                r#"{"model":"gpt-4o","conversation":{"id":"conv_1"}}"#,
                Some(ErrorKind::PassthroughRequired),
            ),
            (
                responses,
                r#"{"model":"gpt-4o","background": true }"#,
                Some(ErrorKind::PassthroughRequired),
            ),
            ("/v1/completions", r#"{"model":"gpt-4o","prompt":"x"}"#, None),
            (
                "/v1/completions",
                r#"{"model":"gpt-4o","models":["gpt-4o","o3"]}"#,
                Some(ErrorKind::ModelNotAllowed),
            ),
        ];
        for (path, body, expected) in rows {
            let checked = caller(&["gpt-4o"], false).check_body(
                &target(path),
                &HeaderMap::new(),
                body.as_bytes(),
                &Routes::default(),
            );
            assert_eq!(checked.err().map(|error| error.kind), expected, "{path} {body}");
        }
        let body = br#"{"model":"gpt-4o","previous_response_id":"resp_1"}"#;
        assert!(
            caller(&["gpt-4o"], true)
                .check_body(&target(responses), &HeaderMap::new(), body, &Routes::default())
                .is_ok()
        );
    }

    #[test]
    fn a_conversation_turns_to_no_model_that_is_not_allowed() {
        for (body, expected) in [
            (r#"{"model":"gpt-4o","messages":[]}"#, true),
            (r#"{"models":["gpt-4o"]}"#, true),
            (r#"{"models":["gpt-4o","o3"]}"#, false),
            (r#"{"mod\u0065ls":["o3"]}"#, false),
            (r#"{"models":[7]}"#, false),
            (r#"{"messages":[{"models":["o3"]}]}"#, true),
            (r#"{"models":[],"models":["o3"]}"#, false),
        ] {
            let checked =
                caller(&["gpt-4o"], false).check_conversation(body.as_bytes(), &Routes::default());
            assert_eq!(checked.is_ok(), expected, "{body}");
            assert!(
                caller(&[], false).check_conversation(body.as_bytes(), &Routes::default()).is_ok()
            );
        }
    }
}
