//! Checkers of Responses and Messages by their API references. They share no code with weir.

use serde_json::Value;

/// Returns the reason for which a provider would refuse the body of Responses.
pub fn responses(body: &Value) -> Result<(), String> {
    let items = body["input"].as_array().ok_or("no list of items")?;
    let mut open: Vec<&str> = Vec::new();
    // A call is answered once; after its answer others may follow at any place.
    for (place, item) in items.iter().enumerate() {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or("message") {
            "function_call" | "custom_tool_call" | "program" | "tool_search_call" => open.push(id),
            answer @ ("function_call_output"
            | "custom_tool_call_output"
            | "program_output"
            | "tool_search_output") => {
                let own = open.iter().position(|call| *call == id);
                let own = own.ok_or(format!("item {place} answers no call"))?;
                open.remove(own);
                if answer.ends_with("_call_output") && item["output"].is_null() {
                    return Err(format!("item {place} has no output"));
                }
            }
            "message" if item["role"] == "user" && !open.is_empty() => {
                return Err(format!("item {place} stands where outputs are due"));
            }
            "message" => check_parts(item, place)?,
            "reasoning" => {
                let next = items.get(place + 1).map(|next| next["type"].as_str());
                let follows = matches!(
                    next,
                    Some(
                        Some(
                            "function_call"
                                | "custom_tool_call"
                                | "program"
                                | "tool_search_call"
                                | "reasoning"
                                | "message"
                        ) | None
                    )
                );
                if !follows || items[place + 1]["role"] == "user" {
                    return Err(format!(
                        "item {place}: reasoning without the item that follows it"
                    ));
                }
            }
            _ => {}
        }
    }
    if open.is_empty() { Ok(()) } else { Err("outputs are missing at the end".to_owned()) }
}

/// Checks that a message's parts have the types that its role may have.
fn check_parts(item: &Value, place: usize) -> Result<(), String> {
    let is_assistant = item["role"] == "assistant";
    for part in item["content"].as_array().into_iter().flatten() {
        let kind = part["type"].as_str().unwrap_or_default();
        let fits = match is_assistant {
            true => matches!(kind, "output_text" | "refusal"),
            false => matches!(kind, "input_text" | "input_image" | "input_file" | "input_audio"),
        };
        if !fits {
            return Err(format!("item {place}: a part of type {kind}"));
        }
    }
    Ok(())
}

/// Returns the reason for which a strict provider would refuse the body of Messages.
pub fn messages(body: &Value) -> Result<(), String> {
    let list = body["messages"].as_array().ok_or("no list of messages")?;
    let mut open: Vec<&str> = Vec::new();
    let mut before = "";
    for (place, message) in list.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role == before {
            return Err(format!("message {place}: two of {role} in a row"));
        }
        if place == 0 && role != "user" {
            return Err(format!("the first message is of {role}"));
        }
        // Anthropic's guide to system messages inside a conversation.
        if (role == "system" && before != "user") || (before == "system" && role != "assistant") {
            return Err(format!("message {place}: {role} after {before}"));
        }
        before = role;
        let blocks = match &message["content"] {
            Value::String(text) if text.is_empty() => {
                return Err(format!("message {place} is empty"));
            }
            Value::String(_) => &[],
            Value::Array(blocks) if blocks.is_empty() => {
                return Err(format!("message {place} is empty"));
            }
            Value::Array(blocks) => blocks.as_slice(),
            _ => return Err(format!("message {place} has no content")),
        };
        let is_result = |block: &&Value| block["type"] == "tool_result";
        let results: Vec<&Value> = blocks.iter().take_while(is_result).collect();
        if blocks.iter().filter(is_result).count() > results.len() {
            return Err(format!("message {place}: a result after other blocks"));
        }
        for result in results {
            let id = result["tool_use_id"].as_str().unwrap_or_default();
            let own = open.iter().position(|call| *call == id);
            open.remove(own.ok_or(format!("message {place} answers no call"))?);
        }
        if !open.is_empty() {
            return Err(format!("message {place} stands where results are due"));
        }
        for block in blocks {
            if block["type"] == "tool_use" {
                open.push(block["id"].as_str().unwrap_or_default());
                if !block["input"].is_object() {
                    return Err(format!("message {place}: a call's input is no object"));
                }
            }
            if block["type"] == "text" && block["text"] == "" {
                return Err(format!("message {place}: an empty text"));
            }
        }
    }
    if open.is_empty() { Ok(()) } else { Err("results are missing at the end".to_owned()) }
}
