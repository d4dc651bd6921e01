// Messages: what Anthropic's reference says of a request, thinking that is signed over everything
// before it, and answers of the protocol's form.

import { createHmac } from "node:crypto";

import { canonical, frame, framed, nameFault, shellArguments, shellOf, textTokens, tokens, toolTokens } from "./shared.mjs";
import { blocksFault, loadedTools, SERVER_BLOCKS, steadySystem } from "./shapes.mjs";

const KEY = "scripted provider";
const MAX_CACHE_MARKS = 4;
const ID = /^[a-zA-Z0-9_-]+$/;
const BLOCKS = {
  user: ["text", "image", "document", "tool_result", "search_result", "container_upload"],
  assistant: ["text", "tool_use", "thinking", "redacted_thinking", "server_tool_use", ...SERVER_BLOCKS],
  system: ["text"],
};

function blocksOf(content) {
  return typeof content === "string" ? [{ type: "text", text: content }] : content;
}

export function check(body) {
  if (typeof body.model !== "string") return "no model";
  if ("weir" in body) return "a member weir";
  if (!Number.isInteger(body.max_tokens) || body.max_tokens < 1) return "max_tokens: Field required";
  if (!Array.isArray(body.messages) || body.messages.length === 0) return "messages: at least one message is required";
  for (const tool of body.tools ?? []) {
    const wrong = nameFault(tool.name);
    if (wrong) return wrong;
  }
  const marks = [...blocksOf(body.system ?? []), ...(body.tools ?? []), ...body.messages.flatMap(marked)];
  const count = marks.filter((holder) => holder.cache_control).length;
  if (count > MAX_CACHE_MARKS) return `A maximum of 4 blocks with cache_control may be provided. Found ${count}.`;
  const open = new Set();
  const ids = new Set();
  let before;
  for (const [place, message] of body.messages.entries()) {
    const wrong = messageFault(message, before) ?? pairFault(message, open, ids);
    if (wrong) return `messages.${place}: ${wrong}`;
    if (message.role !== "system") before = message.role;
  }
  return open.size > 0 ? `no tool_result for ${[...open].join(", ")} at the end` : blocksFault(body);
}

// All holders of cache marks in a message.
function marked({ content }) {
  const blocks = blocksOf(content);
  return [...blocks, ...blocks.flatMap((block) => (Array.isArray(block.content) ? block.content : []))];
}

function messageFault(message, before) {
  const { role, content } = message;
  if (!(role in BLOCKS)) return `a role ${role}`;
  // A system message in the middle may carry the effort from there on (beta).
  const members = role === "system" ? ["role", "content", "output_config"] : ["role", "content"];
  const stray = Object.keys(message).find((name) => !members.includes(name));
  if (stray) return `${stray}: Extra inputs are not permitted`;
  if (before === undefined && role !== "user") return `${role} first`;
  if (role === before) return `two of ${role} in a row`;
  if (typeof content === "string" ? content === "" : !Array.isArray(content) || content.length === 0) return "no content";
  for (const [place, block] of blocksOf(content).entries()) {
    const wrong = blockFault(block, role);
    if (wrong) return `content.${place}: ${wrong}`;
  }
  const last = blocksOf(content).at(-1);
  if (role === "assistant" && last.type.includes("thinking")) return "The final block in an assistant message cannot be `thinking`.";
  return undefined;
}

function blockFault(block, role) {
  if (!BLOCKS[role].includes(block.type)) return `a block of type ${block.type} from ${role}`;
  if ("weir" in block) return "a member weir";
  if (block.type === "text" && !/\S/.test(block.text ?? "")) return "text content blocks must contain non-whitespace text";
  if (block.type.includes("thinking") && block.cache_control) return "a cache mark on thinking";
  if (block.type === "tool_use") {
    if (!ID.test(block.id ?? "")) return `tool_use.id ${block.id}`;
    if (!block.input || typeof block.input !== "object" || Array.isArray(block.input)) return "tool_use.input: Input should be a valid dictionary";
  }
  if (block.type === "tool_result") {
    const inner = block.content ?? "";
    if (typeof inner !== "string" && !(Array.isArray(inner) && inner.every((part) => part.type))) return "a result without content";
  }
  return undefined;
}

// Results stand first in the message behind their calls, one for each.
function pairFault({ role, content }, open, ids) {
  if (role === "system") return open.size > 0 ? "a system message where results are due" : undefined;
  let others = false;
  for (const block of blocksOf(content)) {
    if (block.type !== "tool_result") {
      others = true;
    } else if (others) {
      return "tool_result after other blocks";
    } else if (!open.delete(block.tool_use_id)) {
      return `unexpected tool_use_id in tool_result blocks: ${block.tool_use_id}`;
    }
  }
  if (open.size > 0) return `tool_use ids were found without tool_result blocks immediately after: ${[...open].join(", ")}`;
  for (const block of blocksOf(content).filter(({ type }) => type === "tool_use")) {
    if (ids.has(block.id)) return "tool_use ids must be unique";
    ids.add(block.id);
    open.add(block.id);
  }
  return undefined;
}

// A text is the same as a block with that text.
function canonicalMessage({ role, content }) {
  return canonical({ role, content: blocksOf(content) }, ["cache_control"]);
}

// A block is signed over system, tools and all messages before it, without cache marks:
// platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
function signature(body, place) {
  const mac = createHmac("sha256", KEY);
  mac.update(canonical(steadySystem(blocksOf(body.system ?? [])), ["cache_control"]));
  mac.update(canonical(body.tools ?? [], ["cache_control"]));
  for (const message of body.messages.slice(0, place)) mac.update(canonicalMessage(message));
  return mac.digest("base64");
}

/** The documented refusal of the first block that was signed over something else. */
export function thinkingFault(body) {
  for (const [place, message] of body.messages.entries()) {
    const blocks = blocksOf(message.content);
    for (const [index, block] of blocks.entries()) {
      if (block.type === "thinking" && block.signature !== signature(body, place)) {
        return `messages.${place}.content.${index}: Invalid \`signature\` in \`thinking\` block. The block is bound to a different` +
          " conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\".";
      }
    }
  }
  return undefined;
}

export function thinkingBlocks(body) {
  return body.messages.flatMap(({ content }) => blocksOf(content)).filter(({ type }) => type === "thinking").length;
}

export function toolNames(body) {
  return (body.tools ?? []).map(({ name }) => name).sort();
}

export function items(body) {
  const system = steadySystem(blocksOf(body.system ?? []));
  const list = [canonical(body.tools ?? [], ["cache_control"]), canonical(system, ["cache_control"]), ...body.messages.map(canonicalMessage)];
  const sizes = [
    loadedTools(body).reduce((sum, tool) => sum + toolTokens(tool), 0),
    textTokens(system.map((block) => block.text)),
    ...body.messages.map(({ content }) => framed(blocksOf(content).reduce((sum, block) => sum + blockTokens(block), 0))),
  ];
  return { items: list, sizes };
}

function blockTokens({ text, thinking, input, content, name }) {
  const inner = Array.isArray(content) ? content.map((part) => part.text ?? "") : (content ?? "");
  return textTokens([text ?? "", thinking ?? "", input ?? "", name ?? "", inner]);
}

export function call(body, command, part) {
  const shell = shellOf((body.tools ?? []).map(({ name, input_schema: schema }) => ({ name, schema })));
  if (!shell) throw new Error(`no tool runs a command: ${toolNames(body).join(", ")}`);
  return { type: "tool_use", id: `toolu_${String(part).padStart(4, "0")}`, name: shell.name, input: shellArguments(shell, command, part) };
}

export function refusal(status, message) {
  return { status, json: { type: "error", error: { type: "invalid_request_error", message }, request_id: "req_scripted" } };
}

export function overflow(total, limit) {
  return refusal(400, `prompt is too long: ${total} tokens > ${limit} maximum`);
}

export function answer(body, { text, call: made, promptTokens, turn = 0 }) {
  const content = [];
  if (made && body.thinking && body.thinking.type !== "disabled") {
    const thinking = `Part ${turn} comes next. It could leak, so its level matters.`;
    content.push({ type: "thinking", thinking, signature: signature(body, body.messages.length) });
  }
  if (text) content.push({ type: "text", text });
  if (made) content.push(made);
  const written = content.reduce((sum, block) => sum + blockTokens(block), 0);
  const usage = { input_tokens: promptTokens, cache_creation_input_tokens: 0, cache_read_input_tokens: 0, output_tokens: written };
  const stop = made ? "tool_use" : "end_turn";
  const whole = {
    id: `msg_${turn}`, type: "message", role: "assistant", model: body.model, content, stop_reason: stop, stop_sequence: null, usage,
  };
  return body.stream ? { events: eventsOf(whole) } : { json: whole };
}

function eventsOf(whole) {
  const event = (type, data) => frame({ type, ...data }, type);
  const { usage } = whole;
  const message = { ...whole, content: [], stop_reason: null, usage: { ...usage, output_tokens: 1 } };
  const events = [event("message_start", { message })];
  for (const [index, block] of whole.content.entries()) {
    const delta = (data) => event("content_block_delta", { index, delta: data });
    if (block.type === "thinking") {
      events.push(event("content_block_start", { index, content_block: { type: "thinking", thinking: "", signature: "" } }));
      events.push(delta({ type: "thinking_delta", thinking: block.thinking }));
      events.push(delta({ type: "signature_delta", signature: block.signature }));
    } else if (block.type === "text") {
      events.push(event("content_block_start", { index, content_block: { type: "text", text: "" } }));
      events.push(delta({ type: "text_delta", text: block.text }));
    } else {
      events.push(event("content_block_start", { index, content_block: { ...block, input: {} } }));
      events.push(delta({ type: "input_json_delta", partial_json: JSON.stringify(block.input) }));
    }
    events.push(event("content_block_stop", { index }));
  }
  const stop = { stop_reason: whole.stop_reason, stop_sequence: null };
  events.push(event("message_delta", { delta: stop, usage: { output_tokens: usage.output_tokens } }));
  events.push(event("message_stop", {}));
  return events;
}
