//! Tests of callers' paths on bases of every kind, byte for byte, and of refused paths.

use super::*;

#[track_caller]
fn base(url: &str) -> Base {
    Base::parse(url).expect("a base that is used as one")
}

#[test]
fn endpoints_follow_the_bases_path_and_keep_their_bytes() {
    let rows = [
        ("https://h/v1", "/v1/chat/completions", "/v1/chat/completions"),
        ("https://h/v1/", "/v1/chat/completions", "/v1/chat/completions"),
        ("https://h/openai/v1", "/v1/models?limit=2", "/openai/v1/models?limit=2"),
        ("https://h/openai/v1/", "/v1/models", "/openai/v1/models"),
        ("https://h/api/v1", "/v1/models", "/api/v1/models"),
        ("https://h/v1beta/openai/", "/v1/models", "/v1beta/openai/models"),
        ("https://h", "/v1/models", "/models"),
        ("https://h/", "/v1/models", "/models"),
        ("https://h:8443/team/v1", "/v1/models", "/team/v1/models"),
        ("https://h/v1", "/chat/completions", "/v1/chat/completions"),
        ("https://h", "/chat/completions", "/chat/completions"),
        ("https://h/v1beta/openai", "/embeddings", "/v1beta/openai/embeddings"),
        ("https://h/v1", "/openai/v1/models", "/v1/models"),
        ("https://h/v1", "/api/v1/models", "/v1/models"),
        ("https://h/v1", "/v1beta/openai/models", "/v1/models"),
        ("https://h/openai/v1", "/api/v1/models", "/openai/v1/models"),
        ("https://h/v1", "/v1/any/thing", "/v1/any/thing"),
        ("https://h/v1", "/v1", "/v1"),
        ("https://h/v1", "/v1/", "/v1/"),
        ("https://h", "/v1", "/"),
        ("https://h/v1", "/v1//files/", "/v1//files/"),
        ("https://h/v1", "/v1/files?", "/v1/files?"),
        ("https://h/v1", "/v1/models/a%2Fb:c%20d", "/v1/models/a%2Fb:c%20d"),
        ("https://h/v1", "/v1/models/a%2fb", "/v1/models/a%2fb"),
        ("https://h/v1", "/v1/files?a=%2e%2e/&b=..&b=+", "/v1/files?a=%2e%2e/&b=..&b=+"),
        ("https://h/v1", "/v1/files?m[k]=v&x=?y", "/v1/files?m[k]=v&x=?y"),
        ("https://h/v1", "/v1/files/..a/b..", "/v1/files/..a/b.."),
    ];
    for (url, path, expected) in rows {
        let target = Target::map(&base(url), path).expect(path);
        assert_eq!(target.path_and_query, expected, "{path} on {url}");
        assert_eq!(target.path_model, None, "{path} on {url}");
    }
}

#[test]
fn azures_paths_follow_the_bases_root() {
    let path = "/openai/deployments/my%20gpt/chat/completions?api-version=1";
    for url in [
        "https://h",
        "https://h/",
        "https://h/openai",
        "https://h/openai/deployments/other",
        "https://r.openai.azure.com/openai/v1/",
        "https://r.openai.azure.us/v1",
    ] {
        let target = Target::map(&base(url), path).expect(path);
        assert_eq!(target.path_and_query, path, "on {url}");
        assert_eq!(target.path_model.as_deref(), Some("my gpt"), "on {url}");
        assert_eq!(target.protocol(), Some(Protocol::Chat));
        assert!(!target.is_model_in_body);
    }
    let target =
        Target::map(&base("https://h/team"), "/openai/files?api-version=1").expect("Azure's files");
    assert_eq!(target.path_and_query, "/team/openai/files?api-version=1");
    assert_eq!(target.path_model, None);
}

#[test]
fn azures_paths_become_those_of_a_base_that_is_not_azures() {
    let chat = "/openai/deployments/my%20gpt/chat/completions";
    let rows = [
        ("https://h/v1", chat, "/v1/chat/completions", true),
        ("https://h/team/v1/", chat, "/team/v1/chat/completions", true),
        ("https://h/api/v1", chat, "/api/v1/chat/completions", true),
        ("https://h/openai/v1?k=1", chat, "/openai/v1/chat/completions?k=1", true),
        ("https://h/v1beta/openai", chat, "/v1beta/openai/chat/completions", true),
        ("https://azure.com.example/v1", chat, "/v1/chat/completions", true),
        ("https://h/v1", "/openai/deployments/d/audio/speech?a=b", "/v1/audio/speech?a=b", true),
        ("https://h/v1", "/openai/models", "/v1/models", false),
        ("https://h/team/v1", "/openai/files/f?x=1", "/team/v1/files/f?x=1", false),
        // Paths that only Azure knows stay unchanged.
        ("https://h/v1", "/openai/deployments/d", "/openai/deployments/d", false),
        ("https://h/v1", "/openai/deployments/d/other", "/openai/deployments/d/other", false),
        ("https://h/v1", "/openai/deployments", "/openai/deployments", false),
    ];
    for (url, path, expected, is_model_in_body) in rows {
        for version in ["api-version=1", "api%2Dversion=2024-10-21"] {
            let is_kept = expected.contains("/openai/deployments");
            let with = |path: &str| match path.contains('?') {
                true => path.replacen('?', &format!("?{version}&"), 1),
                false => format!("{path}?{version}"),
            };
            let target = Target::map(&base(url), &with(path)).expect(path);
            let expected = if is_kept { with(expected) } else { expected.to_owned() };
            assert_eq!(target.path_and_query, expected, "{path} on {url}");
            assert_eq!(target.is_model_in_body, is_model_in_body, "{path} on {url}");
            let named = deployment(path).and_then(decoded_text);
            assert_eq!(target.path_model, named, "{path} on {url}");
        }
    }
}

#[test]
fn a_base_that_names_a_deployment_lends_its_query_and_its_model() {
    let azure = base("https://r.openai.azure.com/openai/deployments/g%34/?api-version=2&x=1");
    let rows = [
        ("/v1/chat/completions", "/openai/deployments/g%34/chat/completions?api-version=2&x=1"),
        (
            "/v1/chat/completions?a=b",
            "/openai/deployments/g%34/chat/completions?a=b&api-version=2&x=1",
        ),
        (
            "/chat/completions?api-version=9",
            "/openai/deployments/g%34/chat/completions?api-version=9&x=1",
        ),
        (
            "/chat/completions?api%2Dversion=9&x",
            "/openai/deployments/g%34/chat/completions?api%2Dversion=9&x",
        ),
    ];
    for (path, expected) in rows {
        let target = Target::map(&azure, path).expect(path);
        assert_eq!(target.path_and_query, expected, "{path}");
        assert_eq!(target.path_model.as_deref(), Some("g4"), "{path}");
    }
    let other =
        Target::map(&azure, "/openai/deployments/o1/chat/completions").expect("another deployment");
    assert_eq!(other.path_model.as_deref(), Some("o1"));
    assert_eq!(other.path_and_query, "/openai/deployments/o1/chat/completions?api-version=2&x=1");
}

#[test]
fn a_path_goes_onto_another_base_with_another_model_where_it_names_one() {
    let rows = [
        ("/v1/chat/completions?a=b", "/other/v1/chat/completions?a=b&k=1", None),
        (
            "/openai/deployments/own/chat/completions?api-version=1",
            "/other/v1/chat/completions?k=1",
            Some("own"),
        ),
        ("/openai/deployments/a%2fb%20c/embeddings", "/other/v1/embeddings?k=1", Some("a/b c")),
        ("/v1/models/own?x=1", "/other/v1/models/a/b%20c?x=1&k=1", Some("own")),
        ("/v1/models", "/other/v1/models?k=1", None),
    ];
    for (path, expected, asked) in rows {
        let target = Target::map(&base("https://h/v1"), path).expect(path);
        assert_eq!(target.asked_model().as_deref(), asked, "{path}");
        let other = target.onto(&base("https://i/other/v1?k=1"), "a/b c", true).expect(path);
        assert_eq!(other.path_and_query, expected, "{path}");
        let is_azures = path.starts_with(DEPLOYMENTS);
        assert_eq!(other.path_model.as_deref(), is_azures.then_some("a/b c"), "{path}");
        assert_eq!(other.is_model_in_body, is_azures, "{path}");
        assert_eq!(
            other.endpoint().clone() == *target.endpoint(),
            asked != Some("own") || path.contains("chat")
        );
    }
}

#[test]
fn what_would_not_arrive_as_sent_is_refused() {
    let rows = [
        ("/v1/../admin", TargetError::DotSegment),
        ("/v1/./models", TargetError::DotSegment),
        ("/v1/files/..", TargetError::DotSegment),
        ("/v1/%2e%2E/admin", TargetError::DotSegment),
        ("/v1/.%2e/admin", TargetError::DotSegment),
        ("/v1/..%2fadmin", TargetError::DotSegment),
        ("/v1/..%5Cadmin", TargetError::DotSegment),
        ("/v1/..;/admin", TargetError::DotSegment),
        ("/v1/chat/completions/x/..%3bx", TargetError::DotSegment),
        ("/v1/..\\admin", TargetError::DotSegment),
        ("/openai/deployments/../x", TargetError::DotSegment),
        ("/v1/files\\x", TargetError::Altered),
        ("/v1/a\"b", TargetError::Altered),
        ("/v1/a b", TargetError::Altered),
        ("/v1/a\tb", TargetError::Altered),
        ("/v1/{id}", TargetError::Altered),
        ("/v1/models?q='x'", TargetError::Altered),
        ("/v1/models#x", TargetError::Altered),
        ("/v1/ü", TargetError::Altered),
        ("/openai/deployments/%ff/chat/completions", TargetError::Deployment),
        ("/", TargetError::Unknown),
        ("", TargetError::Unknown),
        ("*", TargetError::Unknown),
        ("/v1x/models", TargetError::Unknown),
        ("/v2/models", TargetError::Unknown),
        ("//v1/models", TargetError::Unknown),
        ("/%761/models", TargetError::Unknown),
        ("/openai", TargetError::Unknown),
        ("/openai/", TargetError::Unknown),
        ("/openai/other", TargetError::Unknown),
        ("/api/chat", TargetError::Unknown),
        ("/favicon.ico", TargetError::Unknown),
        ("/chatx/completions", TargetError::Unknown),
        ("/openai/deployments//chat/completions", TargetError::NoDeployment),
        ("/openai/deployments//", TargetError::NoDeployment),
    ];
    let base = base("https://h/v1");
    for (path, expected) in rows {
        assert_eq!(Target::map(&base, path).err(), Some(expected), "{path}");
    }
}

#[test]
fn every_spelling_of_chat_completions_is_read() {
    let rows = [
        ("/v1/chat/completions", true),
        ("/v1/chat/completions?x=1", true),
        ("/chat/completions", true),
        ("/v1/chat/completions/", true),
        ("/v1//chat//completions", true),
        ("/v1/chat%2Fcompletions", true),
        ("/v1/Chat/c%6Fmpletions", true),
        ("/openai/deployments/chat/chat/completions", true),
        ("/v1/chat/completions;x", true),
        ("/v1/chat;x=1/completions;y/;z", true),
        ("/v1/chat/completions%3Bx", true),
        ("/v1/chat%5ccompletions", true),
        ("/v1/chat/completions%5C", true),
        ("/v1/chat/completions%0a", true),
        ("/v1/chat/completions%20", true),
        ("/v1/%09chat%00/%20completions/%0D%0A", true),
        ("/v1/chat/comp%0aletions", false),
        ("/v1/chat/completions/abc", false),
        ("/v1/completions", false),
        ("/v1/async/chat/completions", false),
        ("/v1/Async/v2/chat/completions", false),
        ("/v1/chat;/completions/abc", false),
        ("/v1/xchat/completions", false),
        ("/v1/models?x=/chat/completions", false),
    ];
    for url in ["https://h/v1", "https://h/serving/deployments", "https://h"] {
        let base = base(url);
        for (path, read) in rows {
            let target = Target::map(&base, path).expect(path);
            assert_eq!(target.protocol().is_some(), read, "{path} on {url}");
        }
    }
    // Azure's older completions of a deployment called "chat", if no other path has that form.
    for (url, read) in [("https://h", true), ("https://h/v1", false)] {
        let target = Target::map(&base(url), "/openai/deployments/chat/completions").expect(url);
        assert_eq!(target.protocol().is_some(), read, "{url}");
        assert_eq!(target.endpoint(), &Endpoint::Route(crate::upstream::Route::Completions));
    }
}

#[test]
fn the_names_in_a_path_decide_its_endpoint() {
    use crate::upstream::Route;
    let rows = [
        ("/v1/chat/completions", Endpoint::Route(Route::Chat)),
        ("/openai/deployments/d/chat/completions", Endpoint::Route(Route::Chat)),
        ("/openai/deployments/d/embeddings?api-version=1", Endpoint::Route(Route::Embeddings)),
        ("/openai/deployments/d/images/generations", Endpoint::Route(Route::Images)),
        ("/v1/completions", Endpoint::Route(Route::Completions)),
        ("/embeddings", Endpoint::Route(Route::Embeddings)),
        ("/v1/responses", Endpoint::Route(Route::Responses)),
        ("/v1//Responses/", Endpoint::Route(Route::Responses)),
        ("/v1/%72esponses%20", Endpoint::Route(Route::Responses)),
        ("/v1/responses;x=1", Endpoint::Route(Route::Responses)),
        ("/v1/messages", Endpoint::Route(Route::Messages)),
        ("/v1/audio/speech", Endpoint::Route(Route::Speech)),
        ("/v1/moderations", Endpoint::Route(Route::Moderations)),
        ("/v1/models", Endpoint::Models),
        ("/openai/models", Endpoint::Models),
        ("/v1/models/gpt-4o", Endpoint::Model("gpt-4o".into())),
        ("/v1/models/a%2Fb:c", Endpoint::Model("a/b:c".into())),
        ("/v1/responses/resp_1", Endpoint::Other(Naming::Unseen)),
        ("/v1/messages/count_tokens", Endpoint::Count),
        ("/v1/files", Endpoint::Other(Naming::Nowhere)),
        ("/v1/x/models", Endpoint::Other(Naming::Unseen)),
        ("/v1/images/edits", Endpoint::Other(Naming::Body)),
        ("/v1/audio/transcriptions", Endpoint::Other(Naming::Body)),
        ("/v1/chat/completions/id", Endpoint::Other(Naming::Nowhere)),
        ("/v1", Endpoint::Other(Naming::Unseen)),
    ];
    for url in ["https://h/v1", "https://h/openai/deployments/own"] {
        for (path, expected) in &rows {
            let target = Target::map(&base(url), path).expect(path);
            assert_eq!(target.endpoint(), expected, "{path} on {url}");
        }
    }
}

#[test]
fn bases_that_cannot_be_used_are_refused() {
    let rows = [
        ("ftp://h/v1", "scheme"),
        ("h/v1", "not a URL"),
        ("https://`/v1", "not a URL"),
        ("https://u:p@h/v1", "credential"),
        ("https://h/v1#x", "fragment"),
        ("https://h/openai/deployments/%ff", "UTF-8"),
    ];
    for (url, said) in rows {
        let error = Base::parse(url).expect_err(url).to_string();
        assert!(error.contains(said), "{url}: {error}");
    }
}

#[test]
fn loopback_is_known_by_name_and_address() {
    for (host, loopback) in [
        ("localhost", true),
        ("a.localhost", true),
        ("127.0.0.1", true),
        ("127.9.9.9", true),
        ("[::1]", true),
        ("[::ffff:127.0.0.1]", true),
        ("10.0.0.1", false),
        ("localhost.example", false),
        ("api.openai.com", false),
    ] {
        let base = base(&format!("http://{host}:1/v1"));
        assert_eq!(base.is_loopback(), loopback, "{host}");
    }
}
