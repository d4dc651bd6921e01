//! What requests of many providers allow.

use super::{Allowance, DEFAULT_FALLBACK, IMAGE_MODEL, MAX_FALLBACKS, is_elsewhere};
use crate::wire::Protocol;

fn of(body: &str) -> Allowance {
    Allowance::of(body.as_bytes(), Some(Protocol::Chat)).expect("an object")
}

#[test]
fn the_largest_limit_counts_and_none_that_is_not_obeyed_everywhere() {
    for (body, tokens, is_limited) in [
        (r#"{"max_tokens":10}"#, 10, true),
        (r#"{"max_tokens":10,"max_completion_tokens":400}"#, 400, true),
        (r#"{"max_tokens":10,"n_predict":500}"#, 500, true),
        (r#"{"max_tokens":10,"options":{"num_predict":"600"}}"#, 600, true),
        (r#"{"max_tokens":10,"max_tokens":700}"#, 700, true),
        (r#"{"n_predict":500}"#, 500, false),
        (r#"{"max_tokens":-1}"#, 0, false),
        (r#"{"max_tokens":10,"n_predict":-1}"#, 10, false),
        (r#"{"max_tokens":10,"options":{"num_predict":-1}}"#, 10, false),
        (r#"{"max_tokens":null}"#, 0, false),
        (r#"{"max_tokens":1e2}"#, 100, true),
        (r#"{"max_tokens":0}"#, 0, false),
        (r#"{"max_tokens":"0","max_completion_tokens":null}"#, 0, false),
        (r#"{"max_output_tokens":20}"#, 20, false),
        (r#"{"max_tokens":10,"fallbacks":[{"model":"m","max_tokens":800}]}"#, 800, true),
    ] {
        let read = of(body);
        assert_eq!((read.limit_tokens, read.is_limited), (tokens, is_limited), "{body}");
    }
    let responses = br#"{"max_output_tokens":20}"#;
    let read = Allowance::of(responses, Some(Protocol::Responses)).expect("an object");
    assert_eq!((read.limit_tokens, read.is_limited), (20, true));
    for (input, is_elsewhere) in [
        (r#"{"input":[{"id":"msg_1"},{"role":"user","content":"go"}]}"#, true),
        (r#"{"input":[{"id":"rs_1","type":null}]}"#, true),
        (r#"{"input":[{"role":"user","content":"go"},{"type":"reasoning","id":"r"}]}"#, true),
        (r#"{"input":[{"type":"reasoning","id":"r","summary":[]}]}"#, true),
        (r#"{"input":[{"type":"reasoning","id":"r","encrypted_content":"e"}]}"#, false),
        (
            r#"{"input":[{"type":"reasoning","id":"r","content":[{"type":"reasoning_text"}]}]}"#,
            false,
        ),
        (r#"{"input":[{"type":"reasoning","summary":[]}]}"#, false),
        (r#"{"input":[{"type":"image_generation_call","id":"i","result":null}]}"#, true),
        (r#"{"input":[{"type":"image_generation_call","id":"i","result":"AAAA"}]}"#, false),
        (r#"{"input":[{"type":"web_search_call","id":"w","status":"completed"}]}"#, true),
        (r#"{"input":[{"type":"web_search_call","id":"w","action":{"query":"q"}}]}"#, false),
        (r#"{"input":[{"type":"computer_call","id":"c"}]}"#, true),
        (
            r#"{"input":[{"type":"code_interpreter_call","id":"c","code":"1","outputs":null}]}"#,
            true,
        ),
        (r#"{"input":[{"type":"function_call","id":"f","arguments":"{}"}]}"#, false),
        (r#"{"input":[{"type":"message","id":"m","role":"assistant","content":[]}]}"#, true),
    ] {
        let read = Allowance::of(input.as_bytes(), Some(Protocol::Responses));
        assert_eq!(read.expect("an object").is_elsewhere, is_elsewhere, "{input}");
    }
}

#[test]
fn documents_by_id_or_address_stand_elsewhere() {
    for (part, expected) in [
        (r#"{"type":"file","file":{"file_id":"f"}}"#, true),
        (r#"{"type":"file","file":{"file_data":"data:application/pdf;base64,AAAA"}}"#, false),
        (r#"{"type":"input_file","file_url":"https://host/a.pdf"}"#, true),
        (r#"{"type":"input_file","filename":"a","file_data":"AAAA"}"#, false),
        (r#"{"type":"document","source":{"type":"url","url":"https://host/a.pdf"}}"#, true),
        (r#"{"type":"document","source":{"type":"file","file_id":"f"}}"#, true),
        (r#"{"type":"document","source":{"type":"text","data":"https://host/"}}"#, false),
        (r#"{"type":"document_url","document_url":"https://host/a.pdf"}"#, true),
        (r#"{"type":"video_url","video_url":{"url":"https://host/a.mp4"}}"#, true),
        (r#"{"type":"web_search_result","url":"https://host/"}"#, false),
        (r#"{"type":"text","text":"a","file_id":"f"}"#, false),
    ] {
        assert_eq!(is_elsewhere(part), expected, "{part}");
    }
}

#[test]
fn answers_and_prompts_multiply() {
    for (body, answers, prompts, most_tokens) in [
        (r#"{"prompt":"abc"}"#, 0, 0, 5),
        (r#"{"prompt":["abc","de"],"n":3}"#, 3, 2, 9),
        (r#"{"prompt":[1,22,333]}"#, 0, 0, 3),
        (r#"{"prompt":[[1,22],[3]],"n":2,"best_of":5}"#, 5, 2, 3),
        (r#"{"n":"4","user":"abc"}"#, 4, 0, 3),
        (r#"{"n":2.5}"#, 3, 0, 0),
        (r#"{"generationConfig":{"candidateCount":4}}"#, 4, 0, 17),
        (r#"{"parameters":{"num_return_sequences":4}}"#, 4, 0, 23),
        (r#"{"batch_size":3}"#, 3, 0, 0),
        (r#"{"parameters":{"sampleCount":4}}"#, 4, 0, 14),
        (r#"{"prompts":["a","b"]}"#, 0, 2, 6),
    ] {
        let read = of(body);
        assert_eq!(
            (read.answers, read.prompts, read.prompt_tokens),
            (answers, prompts, most_tokens),
            "{body}"
        );
    }
}

#[test]
fn what_costs_more_than_text_is_found_wherever_it_stands() {
    let part = |part: &str| of(&format!(r#"{{"messages":[{{"content":[{part}]}}]}}"#));
    assert!(part(r#"{"type":"file","file":{"file_id":"f"}}"#).is_elsewhere);
    assert!(part(r#"{"type":"document","source":{"type":"url","url":"u"}}"#).is_elsewhere);
    assert!(part(r#"{"source":{"media_type":"application/pdf"}}"#).is_elsewhere);
    assert!(!part(r#"{"type":"document","source":{"type":"text","data":"t"}}"#).is_elsewhere);
    assert!(!part(r#"{"type":"text","text":"\"file_id\":\"f\""}"#).is_elsewhere);
    for elsewhere in [
        r#"{"type":"file","file_url":{"url":"https://host/a.pdf"}}"#,
        r#"{"type":"text","pdf_url":"https://host/a.pdf"}"#,
        r#"{"type":"resource_link","uri":"https://host/a.pdf"}"#,
        r#"{"image":"https://host/a.png"}"#,
        r#"{"images":["https://host/a.png"]}"#,
    ] {
        assert!(part(elsewhere).is_elsewhere, "{elsewhere}");
    }
    assert!(!part(r#"{"properties":{"file_url":{"type":"string"}}}"#).is_elsewhere);
    let long = format!(r#"{{"file_url":{{"pad":"{}","url":"https://host/a"}}}}"#, "x".repeat(600));
    assert!(part(&long).is_elsewhere);
    assert!(of(r#"{"files":["f"]}"#).is_elsewhere && !of(r#"{"files":[]}"#).is_elsewhere);
    assert!(part(r#"{"t\u0074l" : "1h"}"#).has_long_writes);
    assert!(!part(r#"{"cache_control":{"ttl":"5m"}}"#).has_long_writes);
    let audio = r#"{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}"#;
    assert!(part(audio).has_audio_input && part(audio).audio_tokens == 1);
    assert!(of(r#"{"modalities":["text","audio"]}"#).has_audio_output);
    assert!(of(r#"{"previous_response_id":"r"}"#).is_elsewhere);
    assert!(of(r#"{"context_management":[{"type":"compaction"}]}"#).may_compact);
    assert!(of(r#"{"speed":"fast"}"#).is_fast);
    assert!(of(r#"{"speed":"fast","speed":"standard"}"#).is_fast);
    let escaped = r#"{"modalities":["text","aud\u0069o"]}"#;
    assert!(of(escaped).has_audio_output && of(r#"{"audio":{"voice":"v"}}"#).has_audio_output);
    for elsewhere in [
        r#"{"type":"document","source":{"type":"ur\u006c","url":"u"}}"#,
        r#"{"source":{"media_type":"Application\/PDF"}}"#,
        r#"{"type":"input_audio","input_audio":{"data":"https://a/b.mp3"}}"#,
        r#"{"image":"https://a/b.png"}"#,
        r#"{"type":"document_url","document_url":"HTTPS://a/b.pdf"}"#,
        r#"{"type":"input_audio","input_audio":"s3://a/b.mp3"}"#,
        r#"{"google":{"cached_content":"cachedContents/a"}}"#,
    ] {
        assert!(part(elsewhere).is_elsewhere, "{elsewhere}");
    }
    let earlier = r#"{"messages":[{"role":"assistant","audio":{"id":"audio_1"}}]}"#;
    assert!(of(earlier).is_elsewhere);
    let two =
        r#"{"format":"wav"},{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}"#;
    assert_eq!(part(two).audio_tokens, 1);
    let image = r#"{"type":"image_url","image_url":{"url":"https://a/b.png"}}"#;
    assert_eq!((part(image).images, part(image).remote_images), (1, 1));
    let two = r#"{"type":"input_image","image_url":"data:image/png;base64,AAAA"},{"type":"image","source":{"type":"url","url":"HTTPS://a/b.png"}}"#;
    assert_eq!((part(two).images, part(two).remote_images), (2, 1));
    assert!(of(r#"{"data_sources":[{"type":"azure_search"}]}"#).is_elsewhere);
    let thinking = r#"{"generationConfig":{"thinkingConfig":{"thinkingBudget":5000}}}"#;
    assert_eq!(of(thinking).thinking_tokens, 5000);
    assert_eq!(of(r#"{"extra_body":{"thinking":{"budget_tokens":7}}}"#).thinking_tokens, 7);
    assert_eq!(of(r#"{"tools":[{"type":"advisor_20260301","model":"m"}]}"#).fallbacks, ["m"]);
    let advisors = vec![r#"{"type":"advisor_20260301","model":"m"}"#; MAX_FALLBACKS].join(",");
    let many = of(&format!(r#"{{"models":["a","b"],"tools":[{advisors}]}}"#));
    assert_eq!(many.fallbacks.len(), MAX_FALLBACKS, "a body chooses their number");
    assert_eq!(of(r#"{"models":["a",{"model":"b"}]}"#).fallbacks, ["a", "b"]);
}

#[test]
fn tools_at_the_provider_are_counted_and_those_of_the_caller_are_not() {
    let tools = |tools: &str| {
        let body = format!(r#"{{"tools":[{tools}]}}"#);
        Allowance::of(body.as_bytes(), Some(Protocol::Messages)).expect("an object")
    };
    let calls = |read: Allowance| (read.searches, read.tool_calls);
    let most = u64::MAX;
    for (tool, expected) in [
        (r#"{"type":"function","function":{"name":"web_search"}}"#, (0, 0)),
        (r#"{"name":"a","input_schema":{}}"#, (0, 0)),
        (r#"{"type":"bash_20250124","name":"bash"}"#, (0, 0)),
        (r#"{"type":"web_search_20250305","max_uses":3}"#, (3, 0)),
        (r#"{"type":"web_search_preview"}"#, (most, 0)),
        (r#"{"google_search":{}}"#, (most, 0)),
        (r#"{"type":"code_interpreter"}"#, (0, most)),
        (r#"{"type":"shell","environment":{"type":"container_auto"}}"#, (0, most)),
        (
            r#"{"type":"web_search_20250305","max_uses":3},{"type":"web_fetch_20250910","max_uses":2}"#,
            (3, 2),
        ),
    ] {
        assert_eq!(calls(tools(tool)), expected, "{tool}");
    }
    let bounded = r#"{"max_tool_calls":4,"tools":[{"type":"web_search","max_uses":2}]}"#;
    // Each protocol has its own limit.
    for (protocol, searches) in
        [(Protocol::Responses, 4), (Protocol::Messages, 2), (Protocol::Chat, most)]
    {
        let read = Allowance::of(bounded.as_bytes(), Some(protocol)).expect("an object");
        assert_eq!(calls(read), (searches, 0), "{protocol:?}");
    }
    assert_eq!(calls(tools(r#"{"type":"shell"}"#)), (0, 0));
    let twice = r#"{"type":"custom","type":"web_search_20250305","max_uses":1,"max_uses":9}"#;
    assert_eq!(calls(tools(twice)), (9, 0));
    assert_eq!(of(r#"{"search_parameters":{}}"#).searches, most);
    assert_eq!(of(r#"{"extra_body":{"enable_search":true}}"#).searches, most);
    for model in ["gpt-4o-search-preview", "gpt-5-search-api", "groq/compound"] {
        assert_eq!(of(&format!(r#"{{"model":"{model}"}}"#)).searches, most, "{model}");
    }
    let read =
        |protocol, body: &str| Allowance::of(body.as_bytes(), Some(protocol)).expect("an object");
    let declared = r#"{"input":[{"type":"additional_tools","tools":[{"type":"web_search"}]},"x"]}"#;
    let own = read(Protocol::Responses, declared);
    assert_eq!((own.searches, own.prompts), (most, 1));
    let loaded =
        r#"{"input":[{"type":"tool_search_output","tools":[{"type":"mcp","server_label":"m"}]}]}"#;
    assert_eq!(read(Protocol::Responses, loaded).tool_calls, most);
    let listed =
        r#"{"input":[{"type":"mcp_list_tools","tools":[{"name":"f","input_schema":{}}]}]}"#;
    assert_eq!(calls(read(Protocol::Responses, listed)), (0, 0));
    let stored = read(Protocol::Responses, r#"{"prompt":{"id":"p"}}"#);
    assert_eq!(calls(stored), (most, most));
    let image = read(Protocol::Responses, r#"{"tools":[{"type":"image_generation"}]}"#);
    assert_eq!((image.image_tool_tokens, image.fallbacks), (6240, vec![IMAGE_MODEL.to_owned()]));
    let search =
        r#"{"tools":[{"type":"tool_search"},{"type":"function","name":"f","defer_loading":true}]}"#;
    assert!(read(Protocol::Responses, search).deferred_tokens > 20);
    let clients = r#"{"tools":[{"type":"tool_search","execution":"client"}]}"#;
    assert_eq!(read(Protocol::Responses, clients).deferred_tokens, 0);
    let anthropics =
        r#"{"tools":[{"name":"f","input_schema":{}},{"type":"bash_20250124","name":"bash"}]}"#;
    assert_eq!(read(Protocol::Messages, anthropics).hidden_tokens, 346 + 245);
    assert_eq!(of(anthropics).hidden_tokens, 0);
    for named in [r#"{"model":"anthropic/Claude-x","#, r#"{"models":["anthropic/Claude-x"],"#] {
        assert_eq!(of(&anthropics.replacen('{', named, 1)).hidden_tokens, 346 + 245);
    }
}

#[test]
fn models_inside_tools_and_plugins_are_named() {
    for (body, names, tool_calls) in [
        (
            r#"{"tools":[{"type":"openrouter:advisor","parameters":{"model":"m"}}]}"#,
            vec!["m"],
            u64::MAX,
        ),
        (
            r#"{"tools":[{"type":"openrouter:fusion","parameters":{"analysis_models":["a","b"],"model":"c"}}]}"#,
            vec!["a", "b", "c"],
            u64::MAX,
        ),
        (
            r#"{"tools":[{"type":"openrouter:image_generation","parameters":{"model":"m"}}]}"#,
            vec!["m"],
            u64::MAX,
        ),
        (
            r#"{"plugins":[{"id":"fusion","analysis_models":["a","b"],"model":"c"}]}"#,
            vec!["a", "b", "c"],
            u64::MAX,
        ),
        (r#"{"plugins":[{"id":"web"}]}"#, vec![], 0),
        (r#"{"tools":[{"type":"function","parameters":{"model":"m"}}]}"#, vec![], 0),
    ] {
        let read = of(body);
        assert_eq!(read.fallbacks, names, "{body}");
        assert_eq!(read.tool_calls, tool_calls, "{body}");
    }
    for (tool, sessions) in [
        (r#"{"type":"shell","environment":{"type":"container_auto"}}"#, 1),
        (r#"{"type":"code_interpreter"}"#, 1),
        (r#"{"type":"file_search"}"#, 0),
    ] {
        assert_eq!(of(&format!(r#"{{"tools":[{tool}]}}"#)).sessions, sessions, "{tool}");
    }
}

#[test]
fn every_provider_s_words_are_read() {
    let predicted = r#"{"prediction":{"type":"content","content":"one two three"}}"#;
    assert!(of(predicted).predicted_tokens >= 3);
    for search in [
        r#"{"web_search":{"enable":true}}"#,
        r#"{"venice_parameters":{"enable_web_search":"on"}}"#,
        r#"{"model":"m:enable_web_search=on"}"#,
        r#"{"models":["perplexity/sonar"]}"#,
        r#"{"extra_body":{"search_parameters":{"mode":"auto"}}}"#,
        r#"{"tools":[{"type":"builtin_function","function":{"name":"$web_search"}}]}"#,
        r#"{"tools":[{"type":"function","function":{"name":"$web_search"}}]}"#,
    ] {
        assert_eq!(of(search).searches, u64::MAX, "{search}");
    }
    for none in [
        r#"{"web_search":{"enable":false}}"#,
        r#"{"venice_parameters":{"enable_web_search":"off"}}"#,
        r#"{"search_parameters":{"mode":"off"},"enable_search":false}"#,
    ] {
        assert_eq!(of(none).searches, 0, "{none}");
    }
    for image in [
        r#"{"model":"google/gemini-2.5-flash-image"}"#,
        r#"{"models":["google/gemini-2.5-flash-image"]}"#,
        r#"{"extra_body":{"generationConfig":{"responseModalities":["TEXT","IMAGE"]}}}"#,
    ] {
        assert!(of(image).has_image_output, "{image}");
    }
    for (models, names) in [
        (r#"{"models":["a","b"]}"#, "a b"),
        (r#"{"fallbacks":[{"model":"a","max_tokens":4},{"m":["b","c"]}]}"#, "a b c"),
        (r#"{"context_window_fallbacks":{"m":["a"]}}"#, "a"),
        (r#"{"models":[["a",[["b"]]],3]}"#, "a"),
        (r#"{"providerOptions":{"gateway":{"models":["a"]}}}"#, "a"),
    ] {
        assert_eq!(of(models).fallbacks.join(" "), names, "{models}");
    }
}

#[test]
fn each_attempt_of_a_message_is_billed() {
    let read =
        |body: &str| Allowance::of(body.as_bytes(), Some(Protocol::Messages)).expect("an object");
    for (body, attempts, names) in [
        (r#"{"fallbacks":[{"model":"a"},{"model":"b"}]}"#, 2, vec!["a", "b"]),
        (r#"{"fallbacks":"default"}"#, 3, vec![DEFAULT_FALLBACK]),
        (r#"{"fallbacks":null}"#, 0, vec![]),
        (r#"{"fallbacks":[]}"#, 0, vec![]),
    ] {
        let read = read(body);
        assert_eq!((read.more_attempts, read.fallbacks), (attempts, names_of(names)), "{body}");
    }
    let own = r#"{"max_tokens":10,"fallbacks":[{"model":"a","max_tokens":5000,"speed":"fast","thinking":{"budget_tokens":4000}}]}"#;
    let own = read(own);
    assert!(own.is_fast && own.is_limited);
    assert_eq!((own.limit_tokens, own.thinking_tokens), (5000, 4000));
    assert_eq!(of(r#"{"fallbacks":[{"model":"a"}]}"#).more_attempts, 0);
}

fn names_of(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn of_two_different_tiers_nobody_knows_which_serves() {
    let tier = |body: &str| of(body).service_tier.expect("one is given");
    assert_eq!(tier(r#"{"service_tier":"flex","extra_body":{"service_tier":"flex"}}"#), "flex");
    assert_eq!(tier(r#"{"service_tier":"priority","extra_body":{"service_tier":"flex"}}"#), "");
    assert_eq!(tier(r#"{"service_tier":"priority","service_tier":"flex"}"#), "");
}

#[test]
fn images_take_tokens_by_size_and_quality() {
    // The guide's figures: 272, 1,056 and 4,160 for a square, 408, 1,584 and 6,240 for a portrait.
    for (body, listed) in [
        (r#"{"size":"1024x1024","quality":"low"}"#, 272),
        (r#"{"size":"1024x1024","quality":"medium"}"#, 1056),
        (r#"{"size":"1024x1024","quality":"high"}"#, 4160),
        (r#"{"size":"1024x1536","quality":"low"}"#, 408),
        (r#"{"size":"1024x1536","quality":"medium"}"#, 1584),
        (r#"{"size":"1024x1536"}"#, 6240),
        (r#"{"size":"256x256","quality":"low"}"#, 272),
        (r#"{"size":"1024x1024","quality":"low","width":1024,"height":1536}"#, 408),
        (r#"{"size":"auto","partial_images":2}"#, 6440),
    ] {
        let held = of(body).image_tokens;
        assert!(held >= listed && held <= listed * 3 / 2, "{body}: {held}");
    }
}

#[test]
fn of_two_members_of_one_name_the_dearer_counts() {
    for (body, tokens) in [
        (r#"{"thinking":{"budget_tokens":10,"budget_tokens":9000}}"#, 9000),
        (r#"{"reasoning":{"max_tokens":9000,"max_tokens":10}}"#, 9000),
        (r#"{"thinkingConfig":{"thinkingBudget":1,"thinking_budget":9000}}"#, 9000),
    ] {
        assert_eq!(of(body).thinking_tokens, tokens, "{body}");
    }
    let shell = r#"{"tools":[{"type":"shell","environment":{"type":"local"},"environment":{"type":"container_auto"}}]}"#;
    assert_eq!(of(shell).tool_calls, u64::MAX);
    let function =
        r#"{"tools":[{"type":"function","function":{"name":"f","name":"$web_search"}}]}"#;
    assert_eq!(of(function).searches, u64::MAX);
    for (model, searches) in [("google/gemini-2.5-flash", 1), ("gemini-3.8-flash", u64::MAX)] {
        let body = format!(r#"{{"model":"{model}","tools":[{{"google_search":{{}}}}]}}"#);
        assert_eq!(of(&body).searches, searches, "{body}");
    }
    assert_eq!(of(r#"{"web_search":{"enable":false,"enable":true}}"#).searches, u64::MAX);
    let long = r#""prediction":{"content":"one two three four"}"#;
    let two = format!(r#"{{{long},"extra_body":{{"prediction":{{"content":"one"}}}}}}"#);
    assert!(of(&two).predicted_tokens >= 18, "{two}");
    assert_eq!(of(r#"{"speed":0.25,"options":{"speed":4}}"#).speed_permille, 250);
    let large = of(r#"{"size":"1024x1024"}"#).image_tokens;
    for two in [
        r#"{"size":"1024x1024","size":"256x256"}"#,
        r#"{"size":"256x256","quality":"low","size":"1024x1024","quality":"high"}"#,
    ] {
        assert_eq!(of(two).image_tokens, large, "{two}");
    }
}

#[test]
fn agents_and_thinking_beyond_the_output_are_found() {
    for (body, tool_calls, apart_tokens) in [
        (r#"{"multi_agent":{"enabled":true}}"#, u64::MAX, 0),
        (r#"{"multi_agent":{"enabled":false}}"#, 0, 0),
        (r#"{"model":"x-ai/grok-4.20-multi-agent"}"#, u64::MAX, 0),
        (r#"{"enable_thinking":true}"#, 0, u64::MAX),
        (r#"{"extra_body":{"enable_thinking":true,"thinking_budget":5000}}"#, 0, 5000),
        (r#"{"enable_thinking":false}"#, 0, 0),
        (r#"{"thinking_budget":"many"}"#, 0, u64::MAX),
    ] {
        let read = of(body);
        assert_eq!((read.tool_calls, read.apart_tokens), (tool_calls, apart_tokens), "{body}");
    }
}

#[test]
fn models_that_think_beyond_max_tokens_unasked_are_known() {
    for (body, tokens) in [
        (r#"{"model":"qwen3.8-max"}"#, u64::MAX),
        (r#"{"model":"aihubmix/Qwen3.7-plus"}"#, u64::MAX),
        (r#"{"model":"qwq-plus","enable_thinking":true}"#, u64::MAX),
        (r#"{"model":"qwen3.8-max","enable_thinking":false}"#, 0),
        (r#"{"model":"qwen3.8-max","enable_thinking":false,"enable_thinking":true}"#, u64::MAX),
        (r#"{"model":"qwen3.8-max","thinking":{"type":"disabled"}}"#, u64::MAX),
        (r#"{"model":"qwen3.8-max","thinking_budget":500}"#, 500),
        (r#"{"model":"qwen3.8-max","extra":{"thinking_budget":500}}"#, u64::MAX),
        (r#"{"model":"qwen/qwen3.6-27b"}"#, 0),
        (r#"{"model":"qwen3.5-122b-a10b"}"#, 0),
        (r#"{"model":"qwen3-max"}"#, 0),
        (r#"{"model":"doubao-seed-2-1-pro-260915"}"#, u64::MAX),
        (r#"{"model":"doubao-seed-2-1-pro","thinking":{"type":"disabled"}}"#, 0),
        (r#"{"model":"doubao-seed-2-1-pro","enable_thinking":false}"#, u64::MAX),
        (r#"{"model":"doubao-seed-2-1-pro","max_completion_tokens":500}"#, 0),
        (r#"{"model":"doubao-seed-2-1-pro","max_completion_tokens":null}"#, u64::MAX),
        (r#"{"model":"gpt-4o","models":["qwen3.8-max"]}"#, u64::MAX),
        (r#"{"model":"gpt-4o"}"#, 0),
    ] {
        assert_eq!(of(body).apart_tokens, tokens, "{body}");
    }
    let responses = br#"{"model":"qwen3.8-max","max_output_tokens":20}"#;
    let read = Allowance::of(responses, Some(Protocol::Responses)).expect("an object");
    assert_eq!(read.apart_tokens, 0);
}

#[test]
fn a_name_in_escapes_is_the_same_name() {
    let escaped = |name: &str| -> String {
        name.chars().map(|letter| format!("\\u{:04x}", u32::from(letter))).collect()
    };
    for name in ["file_id", "cached_content", "cachedContent", "document_url"] {
        let body = format!(r#"{{"x":{{"{}":"https://host/a"}}}}"#, escaped(name));
        assert!(of(&body).is_elsewhere, "{body}");
    }
}

#[test]
fn only_objects_are_read() {
    for body in ["", "[]", "7", "{", "\u{fffd}"] {
        assert_eq!(Allowance::of(body.as_bytes(), None), None, "{body}");
    }
    assert_eq!(Allowance::of(b"{\"a\":\"\xff\"}", None), None);
}
