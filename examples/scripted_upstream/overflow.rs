//! Wording of each vendor's refusal for size. Sources are in `tests/golden/overflow/texts.jsonl`.

use serde_json::{Value, json};

/// Facts of a refusal for size: the prompt, the output limit, and the window.
#[derive(Clone, Copy, Debug)]
pub struct Overflow {
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub context_tokens: u64,
}

/// Returns the status and body of a refusal for size in one vendor's words; `empty` is a 200
/// without a body.
pub fn refusal(vendor: &str, size: Overflow) -> (u16, Option<Value>) {
    let status = match vendor {
        "empty" => return (200, None),
        "lmstudio_200" => 200,
        "too_large" | "cloudflare" => 413,
        "tgi" => 422,
        _ => 400,
    };
    (status, Some(body(vendor, &says(vendor, size), size)))
}

fn says(vendor: &str, size: Overflow) -> String {
    let Overflow { prompt_tokens: prompt, output_tokens: output, context_tokens: window } = size;
    let total = prompt + output;
    match vendor {
        "novita" => "The input is longer than the model's context length".to_owned(),
        "zai" => "Prompt too long".to_owned(),
        "anthropic" if output > 0 && prompt <= window => format!(
            "input length and `max_tokens` exceed context limit: {prompt} + {output} > {window}, decrease input length or `max_tokens` and try again"
        ),
        "anthropic" => format!("prompt is too long: {prompt} tokens > {window} maximum"),
        "gemini" => format!(
            "The input token count ({prompt}) exceeds the maximum number of tokens allowed ({window})."
        ),
        "llamacpp" | "ollama" => format!(
            "request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it"
        ),
        "vllm" => format!(
            "This model's maximum context length is {window} tokens. However, your request has {prompt} input tokens. Please reduce the length of the input messages."
        ),
        // It stops counting once the limit is passed.
        "vllm_new" | "openrouter_raw" => format!(
            "This model's maximum context length is {window} tokens. However, you requested {output} output tokens and your prompt contains at least {0} input tokens, for a total of at least {1} tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value={0})",
            window + 1 - output.min(window),
            window + 1,
        ),
        "sglang" if prompt < window => format!(
            "Requested token count exceeds the model's maximum context length of {window} tokens. You requested a total of {total} tokens: {prompt} tokens from the input messages and {output} tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit."
        ),
        "sglang" => format!(
            "The input ({prompt} tokens) is longer than the model's context length ({window} tokens)."
        ),
        "tgi" => format!(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {window}. Given: {prompt} `inputs` tokens and {output} `max_new_tokens`"
        ),
        "mistral" => format!(
            "Prompt contains {prompt} tokens and 0 draft tokens, too large for model with {window} maximum context length"
        ),
        "groq" => "Please reduce the length of the messages or completion.".to_owned(),
        "openrouter" => format!(
            "This endpoint's maximum context length is {window} tokens. However, you requested about {total} tokens ({prompt} of text input, {output} in the output). Please reduce the length of either one, or use the \"middle-out\" transform to compress your prompt automatically."
        ),
        "lmstudio" | "lmstudio_200" => format!(
            "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: {prompt}>= n_ctx: {window}). Try to load the model with a larger context length, or provide a shorter input."
        ),
        "xai" => format!(
            "This model's maximum prompt length is {window} but the request contains {prompt} tokens."
        ),
        "unnumbered" => "Your input exceeds the context window of this model. Please adjust your input and try again.".to_owned(),
        "vllm_negative" => format!(
            "max_tokens must be at least 1, got {got}. (parameter=max_tokens, value={got})",
            got = i128::from(window) - i128::from(prompt)
        ),
        "cloudflare" => format!(
            "AiError: AiError: The estimated number of input and maximum output tokens ({total}) exceeded this model context window limit ({window}). (a-b-c)"
        ),
        "siliconflow" => format!("length of prompt_tokens ({prompt}) must be less than max_seq_len ({window})."),
        "deepinfra" => {
            format!("Requested input length {prompt} exceeds maximum input length {window}")
        }
        "too_large" => format!("Request too large: {prompt} tokens, limit {window}."),
        _ if output == 0 => format!(
            "This model's maximum context length is {window} tokens. However, your messages resulted in {prompt} tokens. Please reduce the length of the messages."
        ),
        _ => format!(
            "This model's maximum context length is {window} tokens. However, you requested {total} tokens ({prompt} in the messages, {output} in the completion). Please reduce the length of the messages or completion."
        ),
    }
}

fn body(vendor: &str, says: &str, size: Overflow) -> Value {
    let Overflow { prompt_tokens: prompt, context_tokens: window, .. } = size;
    let of_vllm = |says: &str| json!({"error": {"message": says, "type": "BadRequestError", "param": null, "code": 400}});
    let of_llamacpp = || {
        json!({"error": {"code": 400, "message": says, "type": "exceed_context_size_error",
            "n_prompt_tokens": prompt, "n_ctx": window}})
    };
    match vendor {
        "anthropic" => {
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": says}})
        }
        "gemini" => {
            json!([{"error": {"code": 400, "message": says, "status": "INVALID_ARGUMENT"}}])
        }
        "llamacpp" => of_llamacpp(),
        "ollama" => json!({"error": of_llamacpp().to_string()}),
        "mistral" => json!({"object": "error", "message": says,
            "type": "invalid_request_prompt_too_long", "param": null, "code": "3051"}),
        "vllm" | "vllm_new" | "vllm_negative" | "deepinfra" | "novita" => of_vllm(says),
        "cloudflare" => json!({"errors": [{"message": says, "code": 5021}], "success": false,
            "result": {}, "messages": []}),
        "siliconflow" => json!({"code": 20015, "message": says, "data": null}),
        "zai" => json!({"error": {"code": "1261", "message": says}}),
        "sglang" => json!({"object": "error", "message": says, "type": "BadRequestError",
            "param": null, "code": 400}),
        "tgi" => json!({"error": says, "error_type": "validation"}),
        "deepseek" => json!({"error": {"message": says, "type": "invalid_request_error",
            "param": null, "code": "invalid_request_error"}}),
        "openrouter" => json!({"error": {"message": says, "code": 400,
            "metadata": {"provider_name": null}}}),
        "openrouter_raw" => json!({"error": {"message": "Provider returned error", "code": 400,
            "metadata": {"raw": of_vllm(says).to_string(), "provider_name": "Parasail"}}}),
        "lmstudio" | "lmstudio_200" => json!({"error": says}),
        "xai" => json!({"code": "Client specified an invalid argument", "error": says}),
        _ => json!({"error": {"message": says, "type": "invalid_request_error",
            "param": "messages", "code": "context_length_exceeded"}}),
    }
}
