// Tool-calling conversation as an application keeps it: every message is kept and sent again.

import assert from "node:assert/strict";

export const LIMIT_TOKENS = 2000;
export const EXCHANGES = 12;

export const TOOLS = [
  {
    type: "function",
    function: {
      name: "read_gauge",
      description: "Reads the water level at a place on the river.",
      parameters: {
        type: "object",
        properties: {
          place: { type: "string", description: "Where to read" },
          days: { type: "integer" },
        },
        required: ["place"],
      },
    },
  },
];

const SIDES = ["left", "right"];

// Returns the header that sets the upstream's answer.
export function script(answer) {
  return { "x-upstream-script": JSON.stringify(answer) };
}

// Two calls at once.
export function callsScript(exchange) {
  const calls = SIDES.map((side) => ({
    name: "read_gauge",
    arguments: { place: `gauge ${exchange}-${side}`, days: exchange },
  }));
  return script({ tool_calls: calls });
}

export function opening() {
  return [{ role: "system", content: "You watch the river and report its level." }];
}

export function question(exchange) {
  return { role: "user", content: `How high is the water at gauge ${exchange}?` };
}

// Returns a tool's result of a typical length.
export function result(call) {
  const { place } = JSON.parse(call.function.arguments);
  const rows = Array.from({ length: 12 }, (_, hour) => {
    return `${place}: hour ${hour} level ${(hour * 37) % 90} cm`;
  });
  return { role: "tool", tool_call_id: call.id, content: rows.join("\n") };
}

// Asserts that the calls are those in the script.
export function assertCalls(calls, exchange) {
  const told = calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  const asked = SIDES.map((side) => {
    return ["read_gauge", { place: `gauge ${exchange}-${side}`, days: exchange }];
  });
  assert.deepEqual(told, asked);
  assert.equal(new Set(calls.map((call) => call.id)).size, 2);
}

// Record of weir's report on each request, in order.
export class Course {
  actions = [];

  note(headers, promptTokens) {
    assert.ok(promptTokens <= LIMIT_TOKENS);
    assert.equal(Number(headers.get("x-weir-limit-tokens")), LIMIT_TOKENS);
    const sentTokens = Number(headers.get("x-weir-sent-tokens"));
    assert.ok(sentTokens <= LIMIT_TOKENS);
    assert.ok(promptTokens <= sentTokens, "weir never counts less than there is");
    const action = headers.get("x-weir-action");
    const receivedTokens = Number(headers.get("x-weir-received-tokens"));
    assert.equal(action === "pass", receivedTokens === sentTokens);
    this.actions.push(action);
  }

  // Asserts that the conversation exceeded the limit, and that no request to the upstream did.
  async check(upstream) {
    assert.equal(this.actions[0], "pass");
    assert.ok(this.actions.at(-1).split("+").includes("evict"));
    assert.ok(!this.actions.some((action) => action.includes("fault")));
    const seen = await upstream.requests();
    assert.equal(seen.length, 2 * EXCHANGES);
    assert.equal(this.actions.length, 2 * EXCHANGES);
    for (const request of seen) {
      assert.equal(request.status, 200);
      assert.ok(request.prompt_tokens <= LIMIT_TOKENS);
    }
  }
}
