// Responses: what OpenAI's reference says of a request, and answers of its form.

import { canonical, digest, frame, framed, nameFault, shellArguments, shellOf, textTokens, tokens, toolTokens } from "./shared.mjs";
import { itemsFault, steadyInstructions } from "./shapes.mjs";

const CALLS = { function_call: "function_call_output", custom_tool_call: "custom_tool_call_output" };
const OUTPUTS = Object.values(CALLS);
const PARTS = {
  user: ["input_text", "input_image", "input_file", "input_audio"],
  system: ["input_text"],
  developer: ["input_text"],
  assistant: ["output_text", "refusal"],
};

// Reasoning that was handed out, by its sealed content, and the call that followed it.
const handed = new Map();
const followers = new Map();

export function check(body) {
  if (typeof body.model !== "string") return "no model";
  if ("weir" in body) return "a member weir";
  if (typeof body.input === "string") return undefined;
  if (!Array.isArray(body.input) || body.input.length === 0) return "no input";
  for (const tool of functionsOf(body)) {
    const wrong = nameFault(tool.name);
    if (wrong) return wrong;
  }
  const names = toolNames(body);
  const lost = body.input.find((item) => item.type in CALLS && !names.includes(item.name));
  if (lost) return `a call of ${lost.name}, which no tool declares`;
  const open = new Map();
  const seen = new Set();
  for (const [place, item] of body.input.entries()) {
    const wrong = itemFault(item, open, seen) ?? reasoningFault(body.input, place);
    if (wrong) return `input[${place}]: ${wrong}`;
  }
  if (open.size > 0) return `No tool output found for function call ${[...open.keys()].join(", ")}.`;
  return itemsFault(body);
}

function itemFault(item, open, seen) {
  const type = item.type ?? "message";
  if (type in CALLS) {
    if (!item.call_id || seen.has(item.call_id)) return `a call without an id of its own: ${item.call_id}`;
    if (typeof (item.arguments ?? item.input) !== "string") return "a call without arguments";
    seen.add(item.call_id);
    open.set(item.call_id, CALLS[type]);
    return undefined;
  }
  if (OUTPUTS.includes(type)) {
    if (open.get(item.call_id) !== type) return `No tool call found for output of ${item.call_id}`;
    open.delete(item.call_id);
    const isParts = Array.isArray(item.output) && item.output.length > 0;
    return typeof item.output === "string" || isParts ? undefined : "an output that is neither text nor parts";
  }
  if (type === "reasoning") return Array.isArray(item.summary) ? undefined : "reasoning without a summary";
  if (type !== "message") return undefined;
  if (!(item.role in PARTS)) return `a role ${item.role}`;
  if (item.role === "user" && open.size > 0) return `a user's message where outputs of ${[...open.keys()].join(", ")} are due`;
  if (typeof item.content === "string") return undefined;
  if (!Array.isArray(item.content) || item.content.length === 0) return "a message without content";
  const stray = item.content.find((part) => !PARTS[item.role].includes(part.type));
  return stray ? `a part of type ${stray.type} from ${item.role}` : undefined;
}

// Reasoning and the call that it led to stay together.
function reasoningFault(input, place) {
  const item = input[place];
  if (item.type === "reasoning") {
    if (item.encrypted_content === undefined || item.encrypted_content === null) return undefined;
    if (!handed.has(item.encrypted_content)) return "reasoning that nobody handed out";
    const due = handed.get(item.encrypted_content);
    const rest = input.slice(place + 1, place + 4);
    return rest.some((next) => next.call_id === due) ? undefined : `reasoning without its required following item ${due}`;
  }
  const sealed = item.type in CALLS && followers.get(item.call_id);
  // Clients that send no reasoning at all may leave it out.
  if (!sealed || !input.some((other) => other.encrypted_content)) return undefined;
  const before = input.slice(Math.max(0, place - 3), place);
  const found = before.some((other) => other.encrypted_content === sealed);
  return found ? undefined : `${item.call_id} without its required reasoning item`;
}

// Namespaces hold tools of their own, and codex declares its tools by an item.
function toolsOf(body) {
  const inner = (tool) => (tool.type === "namespace" ? (tool.tools ?? []).flatMap(inner) : [tool]);
  const items = Array.isArray(body.input) ? body.input.filter(({ type }) => type === "additional_tools") : [];
  return [...(body.tools ?? []), ...items.flatMap((item) => item.tools ?? [])].flatMap(inner);
}

function functionsOf(body) {
  return toolsOf(body).filter((tool) => tool.type === "function");
}

export function toolNames(body) {
  return toolsOf(body).flatMap((tool) => tool.name ?? []).sort();
}

function itemTexts(item) {
  const { content, output, summary, arguments: given, input, name } = item;
  const parts = (value) => (Array.isArray(value) ? value.map((part) => part.text ?? "") : (value ?? ""));
  return [parts(content), parts(output), parts(summary), given ?? "", input ?? "", name ?? "", item.encrypted_content ?? ""];
}

export function items(body) {
  const input = typeof body.input === "string" ? [{ role: "user", content: body.input }] : (body.input ?? []);
  const list = [canonical(steadyInstructions(body.instructions)), canonical(body.tools ?? []), ...input.map((item) => canonical(item))];
  const sizes = [
    tokens(body.instructions ?? ""),
    (body.tools ?? []).filter((tool) => !tool.defer_loading).reduce((sum, tool) => sum + toolTokens(tool), 0),
    ...input.map((item) => framed(textTokens(itemTexts(item)) + (item.tools ?? []).reduce((sum, tool) => sum + toolTokens(tool), 0))),
  ];
  return { items: list, sizes };
}

export function call(body, command, part) {
  const programs = toolsOf(body).find(({ type, name }) => type === "custom" && name === "exec");
  if (programs) {
    const input = `text(await tools.exec_command({ cmd: ${JSON.stringify(command)} }));`;
    return { type: "custom_tool_call", id: `ctc_${part}`, call_id: `call_${part}`, name: "exec", input, status: "completed" };
  }
  const shell = shellOf(functionsOf(body).map(({ name, parameters }) => ({ name, schema: parameters })));
  if (!shell) throw new Error(`no tool runs a command: ${toolNames(body).join(", ")}`);
  const id = String(part).padStart(4, "0");
  return {
    type: "function_call", id: `fc_${id}`, call_id: `call_${id}`, name: shell.name,
    arguments: JSON.stringify(shellArguments(shell, command, part)), status: "completed",
  };
}

export function refusal(status, message) {
  return { status, json: { error: { message, type: "invalid_request_error", param: "input", code: null } } };
}

export function overflow() {
  const message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
  return { status: 400, json: { error: { message, type: "invalid_request_error", param: "input", code: "context_length_exceeded" } } };
}

function outputOf(body, text, made, turn) {
  const output = [];
  if (made && body.include?.includes("reasoning.encrypted_content")) {
    const sealed = `sealed-${digest(`${turn} ${made.call_id}`)}`;
    handed.set(sealed, made.call_id);
    followers.set(made.call_id, sealed);
    output.push({ type: "reasoning", id: `rs_${turn}`, summary: [], encrypted_content: sealed });
  }
  if (text && !made) {
    const content = [{ type: "output_text", text, annotations: [], logprobs: [] }];
    output.push({ type: "message", id: `msg_${turn}`, role: "assistant", status: "completed", content });
  }
  if (made) output.push(made);
  return output;
}

export function answer(body, { text, call: made, promptTokens, turn = 0 }) {
  const output = outputOf(body, text, made, turn);
  const written = textTokens(output.map((item) => itemTexts(item)));
  const usage = {
    input_tokens: promptTokens, input_tokens_details: { cached_tokens: 0 }, output_tokens: written,
    output_tokens_details: { reasoning_tokens: 0 }, total_tokens: promptTokens + written,
  };
  const whole = {
    id: `resp_${turn}`, object: "response", created_at: 1700000000, status: "completed", model: body.model, output, usage,
    error: null, incomplete_details: null, instructions: null, metadata: {}, parallel_tool_calls: true, temperature: 1,
    tool_choice: "auto", tools: [], top_p: 1, truncation: "disabled", store: false,
  };
  return body.stream ? { events: eventsOf(whole) } : { json: whole };
}

function eventsOf(whole) {
  let number = 0;
  const event = (type, data) => frame({ type, sequence_number: number++, ...data }, type);
  const begun = { ...whole, status: "in_progress", output: [], usage: null };
  const events = [event("response.created", { response: begun }), event("response.in_progress", { response: begun })];
  for (const [output_index, item] of whole.output.entries()) {
    const place = { output_index, item_id: item.id };
    const opening = { ...item, status: "in_progress", ...(item.arguments && { arguments: "" }), ...(item.content && { content: [] }) };
    events.push(event("response.output_item.added", { output_index, item: item.type === "reasoning" ? item : opening }));
    if (item.type === "custom_tool_call") {
      events.push(event("response.custom_tool_call_input.delta", { ...place, delta: item.input }));
      events.push(event("response.custom_tool_call_input.done", { ...place, input: item.input }));
    }
    if (item.type === "function_call") {
      events.push(event("response.function_call_arguments.delta", { ...place, delta: item.arguments }));
      events.push(event("response.function_call_arguments.done", { ...place, name: item.name, arguments: item.arguments }));
    }
    if (item.type === "message") {
      const [part] = item.content;
      const within = { ...place, content_index: 0 };
      events.push(event("response.content_part.added", { ...within, part: { ...part, text: "" } }));
      events.push(event("response.output_text.delta", { ...within, delta: part.text, logprobs: [] }));
      events.push(event("response.output_text.done", { ...within, text: part.text, logprobs: [] }));
      events.push(event("response.content_part.done", { ...within, part }));
    }
    events.push(event("response.output_item.done", { output_index, item }));
  }
  events.push(event("response.completed", { response: whole }));
  return events;
}
