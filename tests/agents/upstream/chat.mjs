// Chat completions: what OpenAI's reference says of a request, and answers of its form.

import { canonical, frame, framed, nameFault, shellArguments, shellOf, textTokens, tokens, toolTokens } from "./shared.mjs";

const ROLES = ["system", "developer", "user", "assistant", "tool"];
const MEMBERS = [
  "role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "annotations", "function_call",
  "reasoning_content", "provider_specific_fields", "cache_control",
];
const PARTS = {
  system: ["text"],
  developer: ["text"],
  user: ["text", "image_url", "input_audio", "file"],
  assistant: ["text", "refusal"],
  tool: ["text"],
};

export function check(body) {
  if (typeof body.model !== "string") return "no model";
  if ("weir" in body) return "a member weir";
  if (!Array.isArray(body.messages) || body.messages.length === 0) return "no messages";
  for (const tool of body.tools ?? []) {
    if (tool.type !== "function") return `a tool of type ${tool.type}`;
    const wrong = nameFault(tool.function?.name);
    if (wrong) return wrong;
  }
  const open = new Set();
  let spoken = false;
  for (const [place, message] of body.messages.entries()) {
    const wrong = messageFault(message) ?? orderFault(message, open, spoken);
    if (wrong) return `messages[${place}]: ${wrong}`;
    spoken ||= message.role === "user" || message.role === "assistant";
    for (const call of message.tool_calls ?? []) open.add(call.id);
  }
  if (open.size > 0) return `no result for the calls ${[...open].join(", ")} at the end`;
  return undefined;
}

function orderFault(message, open, spoken) {
  if (message.role === "tool") {
    if (!spoken) return "a result first";
    return open.delete(message.tool_call_id) ? undefined : `a result of ${message.tool_call_id}, which no call before it has open`;
  }
  return open.size > 0 ? `${message.role} where the results of ${[...open].join(", ")} are due` : undefined;
}

function messageFault(message) {
  if (!ROLES.includes(message.role)) return `a role ${message.role}`;
  const stray = Object.keys(message).find((name) => !MEMBERS.includes(name));
  if (stray) return `a member ${stray}`;
  const calls = message.tool_calls;
  if (calls !== undefined && (message.role !== "assistant" || !Array.isArray(calls) || calls.length === 0)) {
    return "calls that are no list, empty or not the assistant's";
  }
  for (const call of calls ?? []) {
    if (call.type !== "function" || typeof call.id !== "string" || !call.id) return "a call without id or type";
    if (typeof call.function?.arguments !== "string") return "arguments that are no string";
    try {
      JSON.parse(call.function.arguments);
    } catch {
      return `arguments that are no JSON: ${call.function.arguments.slice(0, 80)}`;
    }
  }
  if (new Set((calls ?? []).map((call) => call.id)).size < (calls ?? []).length) return "two calls of one id";
  return contentFault(message);
}

function contentFault({ role, content, tool_calls: calls }) {
  if (typeof content === "string") return undefined;
  if (content === null || content === undefined) {
    return role === "assistant" && calls ? undefined : "no content";
  }
  if (!Array.isArray(content) || content.length === 0) return "content that is neither text nor parts";
  for (const part of content) {
    if (!PARTS[role].includes(part.type)) return `a part of type ${part.type} from ${role}`;
    if (part.type === "text" && typeof part.text !== "string") return "a part without text";
  }
  return undefined;
}

export function toolNames(body) {
  return (body.tools ?? []).map((tool) => tool.function?.name).sort();
}

/** What the provider's prompt cache compares, and the tokens of each item. */
export function items(body) {
  const list = [canonical(body.tools ?? []), ...body.messages.map((message) => canonical(message, ["cache_control"]))];
  const sizes = [
    (body.tools ?? []).reduce((sum, tool) => sum + toolTokens(tool), 0),
    ...body.messages.map(({ content, tool_calls: calls }) => {
      const said = typeof content === "string" ? tokens(content) : textTokens((content ?? []).map((part) => part.text ?? ""));
      return framed(said + textTokens((calls ?? []).map((call) => call.function)));
    }),
  ];
  return { items: list, sizes };
}

export function call(body, command, part) {
  const tools = (body.tools ?? []).map(({ function: tool }) => ({ name: tool.name, schema: tool.parameters }));
  const shell = shellOf(tools);
  if (!shell) throw new Error(`no tool runs a command: ${tools.map((tool) => tool.name).join(", ")}`);
  const text = JSON.stringify(shellArguments(shell, command, part));
  return { id: `call_${String(part).padStart(4, "0")}`, type: "function", function: { name: shell.name, arguments: text } };
}

export function refusal(status, message) {
  return { status, json: { error: { message, type: "invalid_request_error", param: null, code: null } } };
}

export function overflow(total, limit) {
  const message =
    `This model's maximum context length is ${limit} tokens. However, your messages resulted in ${total} tokens.` +
    " Please reduce the length of the messages.";
  return { status: 400, json: { error: { message, type: "invalid_request_error", param: "messages", code: "context_length_exceeded" } } };
}

export function answer(body, { text = null, call: made, promptTokens, turn = 0 }) {
  const written = tokens(text ?? "") + textTokens(made ?? {});
  const usage = { prompt_tokens: promptTokens, completion_tokens: written, total_tokens: promptTokens + written };
  const head = { id: `chatcmpl-${turn}`, created: 1700000000, model: body.model };
  const finish = made ? "tool_calls" : "stop";
  if (!body.stream) {
    const message = { role: "assistant", content: text, refusal: null, ...(made && { tool_calls: [made] }) };
    const choices = [{ index: 0, message, logprobs: null, finish_reason: finish }];
    return { json: { ...head, object: "chat.completion", choices, usage } };
  }
  const asked = body.stream_options?.include_usage;
  const chunk = (delta, finish_reason = null) =>
    frame({
      ...head, object: "chat.completion.chunk", choices: [{ index: 0, delta, finish_reason }], ...(asked && { usage: null }),
    });
  const events = [chunk({ role: "assistant", content: "" })];
  if (text) for (const piece of text.match(/[^]{1,400}/g)) events.push(chunk({ content: piece }));
  if (made) {
    events.push(chunk({ tool_calls: [{ index: 0, ...made, function: { ...made.function, arguments: "" } }] }));
    events.push(chunk({ tool_calls: [{ index: 0, function: { arguments: made.function.arguments } }] }));
  }
  events.push(chunk({}, finish));
  if (asked) events.push(frame({ ...head, object: "chat.completion.chunk", choices: [], usage }));
  events.push(frame("[DONE]"));
  return { events };
}
