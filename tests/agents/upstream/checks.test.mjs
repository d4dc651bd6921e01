// Requests that the checkers refuse, each a change of one that they accept.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as chat from "./chat.mjs";
import * as messages from "./messages.mjs";
import * as responses from "./responses.mjs";

const clone = (value) => JSON.parse(JSON.stringify(value));

const CHAT = {
  model: "gpt-4o",
  tools: [{ type: "function", function: { name: "bash", parameters: {} } }],
  messages: [
    { role: "system", content: "s" },
    { role: "user", content: "u" },
    { role: "assistant", content: null, tool_calls: ["a", "b"].map((id) => ({ id, type: "function", function: { name: "bash", arguments: "{}" } })) },
    { role: "tool", tool_call_id: "b", content: "x" },
    { role: "tool", tool_call_id: "a", content: "y" },
  ],
};

const RESPONSES = {
  model: "gpt-5",
  include: ["reasoning.encrypted_content"],
  tools: [{ type: "function", name: "bash", parameters: { properties: { command: { type: "string" } } } }],
  input: [{ role: "user", content: [{ type: "input_text", text: "u" }] }],
};

const MESSAGES = {
  model: "claude-opus-5-5",
  max_tokens: 99,
  thinking: { type: "adaptive" },
  system: [{ type: "text", text: "s", cache_control: { type: "ephemeral" } }],
  tools: [{ name: "Bash", input_schema: { properties: { command: { type: "string" } } } }],
  messages: [{ role: "user", content: "u" }],
};

// Appends the provider's own answer and a result.
function continued(protocol, body, part) {
  const next = clone(body);
  const { json } = protocol.answer(body, { text: "t", call: protocol.call(body, `cat ${part}`, part), promptTokens: 1, turn: part });
  if (protocol === responses) {
    next.input.push(...json.output, { type: "function_call_output", call_id: json.output.at(-1).call_id, output: "x" });
  } else {
    next.messages.push({ role: "assistant", content: json.content });
    next.messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: json.content.at(-1).id, content: "x" }] });
  }
  return next;
}

function refuses(protocol, body, changes) {
  assert.equal(protocol.check(body), undefined);
  for (const [reason, change] of changes) {
    const changed = clone(body);
    change(changed);
    assert.match(protocol.check(changed) ?? "accepted", reason);
  }
}

test("chat completions", () => {
  refuses(chat, CHAT, [
    [/results of a, b/, ({ messages: list }) => list.splice(3, 1, { role: "user", content: "u" })],
    [/no call before it has open/, ({ messages: list }) => list.splice(2, 1)],
    [/no result for the calls a/, ({ messages: list }) => list.pop()],
    [/a result first/, ({ messages: list }) => list.splice(1, 2)],
    [/member weir/, ({ messages: list }) => (list[1].weir = { pin: true })],
    [/no JSON/, ({ messages: list }) => (list[2].tool_calls[0].function.arguments = "{")],
    [/neither text nor parts/, ({ messages: list }) => (list[1].content = [])],
    [/part of type image_url from tool/, ({ messages: list }) => (list[3].content = [{ type: "image_url" }])],
  ]);
});

test("Responses", () => {
  const body = continued(responses, continued(responses, RESPONSES, 1), 2);
  refuses(responses, body, [
    [/No tool output found for function call call_0002/, ({ input }) => input.pop()],
    [/No tool call found/, ({ input }) => input.splice(2, 1)],
    [/without its required following item/, ({ input }) => input.splice(2, 2)],
    [/without its required reasoning item/, ({ input }) => input.splice(1, 1)],
    [/nobody handed out/, ({ input }) => (input[1].encrypted_content = "forged")],
    [/no tool declares/, (own) => (own.tools = [])],
    [/a part of type output_text from user/, ({ input }) => (input[0].content[0].type = "output_text")],
  ]);
});

test("Messages", () => {
  const body = continued(messages, continued(messages, MESSAGES, 1), 2);
  const mark = { type: "ephemeral" };
  refuses(messages, body, [
    [/without tool_result/, ({ messages: list }) => (list[2].content = "u")],
    [/unexpected tool_use_id/, ({ messages: list }) => list[1].content.pop()],
    [/two of user/, ({ messages: list }) => list.splice(1, 1)],
    [/assistant first/, ({ messages: list }) => list.splice(0, 1)],
    [/after other blocks/, ({ messages: list }) => list[2].content.unshift({ type: "text", text: "u" })],
    [/non-whitespace/, ({ messages: list }) => (list[0].content = " ")],
    [/maximum of 4/, ({ messages: list }) => (list[0].content = ["a", "b", "c", "d"].map((text) => ({ type: "text", text, cache_control: mark })))],
    [/final block/, ({ messages: list }) => (list[3].content = list[3].content.slice(0, 1))],
    [/max_tokens/, (own) => delete own.max_tokens],
  ]);
});

test("servers' tools and deferred ones", () => {
  const reference = { type: "tool_search_tool_search_result", tool_references: [{ type: "tool_reference", tool_name: "gauge" }] };
  const body = clone(MESSAGES);
  body.tools.push({ name: "gauge", input_schema: {}, defer_loading: true });
  body.messages.push(
    {
      role: "assistant",
      content: [
        { type: "server_tool_use", id: "s", name: "tool_search_tool_regex", input: {} },
        { type: "tool_search_tool_result", tool_use_id: "s", content: reference },
        { type: "server_tool_use", id: "a", name: "advisor", input: {} },
        { type: "tool_use", id: "g", name: "gauge", input: {} },
      ],
    },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "g", content: "x" }] },
    { role: "assistant", content: [{ type: "advisor_tool_result", tool_use_id: "a", content: { type: "advisor_result", text: "t" } }, { type: "text", text: "t" }] },
    { role: "user", content: "u" },
  );
  refuses(messages, body, [
    [/which is not loaded/, ({ messages: list }) => list[1].content.splice(0, 2)],
    [/not found in tools/, (own) => own.tools.pop()],
    [/unexpected tool_use_id in advisor/, ({ messages: list }) => list[1].content.splice(2, 1)],
    [/was found without its result/, ({ messages: list }) => list[3].content.shift()],
  ]);
  const items = clone(RESPONSES);
  items.tools.push({ type: "function", name: "gauge", parameters: {}, defer_loading: true });
  items.input.push(
    { type: "tool_search_call", id: "t", call_id: null },
    { type: "tool_search_output", id: "o", call_id: null, tools: [items.tools[1]] },
    { type: "function_call", call_id: "g", name: "gauge", arguments: "{}" },
    { type: "function_call_output", call_id: "g", output: "x" },
    { type: "mcp_approval_request", id: "m" },
    { type: "mcp_approval_response", approval_request_id: "m", approve: true },
  );
  refuses(responses, items, [
    [/which is not loaded/, ({ input }) => input.splice(1, 2)],
    [/without its other half/, ({ input }) => input.splice(1, 1)],
    [/No approval request/, ({ input }) => input.splice(5, 1)],
  ]);
});

test("thinking is bound to what stands before it", () => {
  const body = continued(messages, continued(messages, MESSAGES, 1), 2);
  assert.equal(messages.thinkingBlocks(body), 2);
  const accepted = [
    (own) => delete own.system[0].cache_control,
    ({ messages: list }) => (list[0].content = [{ type: "text", text: "u", cache_control: { type: "ephemeral" } }]),
    (own) => (own.max_tokens = 7),
  ];
  const refused = [
    (own) => (own.system[0].text = "other"),
    (own) => (own.tools[0].description = "other"),
    ({ messages: list }) => (list[0].content = "other"),
    ({ messages: list }) => (list[2].content[0].content = "other"),
    ({ messages: list }) => list[1].content.shift(),
    ({ messages: list }) => (list[1].content[0].signature = "forged"),
  ];
  for (const change of [() => {}, ...accepted]) {
    const changed = clone(body);
    change(changed);
    assert.equal(messages.thinkingFault(changed), undefined, String(change));
  }
  for (const change of refused) {
    const changed = clone(body);
    change(changed);
    assert.match(messages.thinkingFault(changed) ?? "accepted", /bound to a different conversation/, String(change));
  }
});
