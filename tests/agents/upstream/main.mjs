// Scripted provider for agents: drives a number of tool turns, checks each request by the rules of
// its protocol, and reports what it saw. It shares no code with weir.
//
// node main.mjs --turns 60 --limit 20000 [--no-tools] [--requests FILE]

import { createHash } from "node:crypto";
import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import { parseArgs } from "node:util";

import * as chat from "./chat.mjs";
import * as messages from "./messages.mjs";
import * as responses from "./responses.mjs";

const { values: flags } = parseArgs({
  options: {
    turns: { type: "string", default: "60" },
    limit: { type: "string", default: "20000" },
    "no-tools": { type: "boolean", default: false },
    requests: { type: "string" },
  },
});
const turns = Number(flags.turns);
const limitTokens = Number(flags.limit);

const protocols = [
  { path: "/v1/chat/completions", ...chat },
  { path: "/v1/responses", ...responses },
  { path: "/v1/messages", ...messages },
];

// A conversation is known by the names of its tools. Requests without tools are side requests, such
// as for a title, unless the agent has no tools.
const threads = new Map();
const report = {
  requests: 0,
  side: 0,
  rewritten: 0,
  invalid: 0,
  oversized: 0,
  thinking_refused: 0,
  thinking_accepted: 0,
  received_tokens: 0,
  shared_tokens: 0,
  largest_tokens: 0,
  finished: false,
  faults: [],
};

function fault(kind, text) {
  report[kind] += 1;
  if (report.faults.length < 20) report.faults.push(`${kind}: ${text}`);
}

function threadOf(protocol, body) {
  const names = protocol.toolNames(body);
  const key = `${protocol.path} ${names.join(" ")}`;
  if (!threads.has(key)) threads.set(key, { hasTools: names.length > 0, turn: 0, items: [], requests: 0 });
  return threads.get(key);
}

// Compares a request with the one before it in its conversation.
function compare(thread, items, sizes) {
  let shared = 0;
  while (shared < thread.items.length && thread.items[shared] === items[shared]) shared += 1;
  const rewritten = shared < thread.items.length;
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const sharedTokens = sizes.slice(0, shared).reduce((sum, size) => sum + size, 0);
  thread.items = items;
  return { rewritten, total, sharedTokens };
}

function handle(request, protocol, text) {
  let body;
  try {
    body = JSON.parse(text);
  } catch (error) {
    fault("invalid", `no JSON: ${error.message}`);
    return protocol.refusal(400, "The body is no JSON.");
  }
  const stray = Object.keys(request.headers).find((name) => name.startsWith("x-weir-"));
  const wrong = stray ? `the header ${stray}` : protocol.check(body);
  const thread = threadOf(protocol, body);
  const side = !thread.hasTools && !flags["no-tools"];
  const { items, sizes } = protocol.items(body);
  const { rewritten, total, sharedTokens } = compare(thread, items, sizes);
  thread.requests += 1;
  report.requests += 1;
  report.largest_tokens = Math.max(report.largest_tokens, total);
  if (flags.requests) {
    const seen = { path: request.url, total, rewritten, side, wrong, turn: thread.turn, headers: request.headers, body };
    appendFileSync(flags.requests, `${JSON.stringify(seen)}\n`);
  }
  if (wrong) {
    fault("invalid", `request ${report.requests}: ${wrong}`);
    return protocol.refusal(400, wrong);
  }
  if (side) {
    report.side += 1;
    return protocol.answer(body, { text: "Reading parts", promptTokens: total });
  }
  if (total > limitTokens) {
    fault("oversized", `request ${report.requests}: ${total} tokens`);
    return protocol.overflow(total, limitTokens);
  }
  const foreign = protocol.thinkingFault?.(body);
  if (foreign) {
    fault("thinking_refused", `request ${report.requests}: ${foreign}`);
    return protocol.refusal(400, foreign);
  }
  report.thinking_accepted += protocol.thinkingBlocks?.(body) ?? 0;
  report.received_tokens += total;
  report.shared_tokens += sharedTokens;
  if (rewritten) report.rewritten += 1;
  return protocol.answer(body, { ...step(protocol, body, thread), promptTokens: total, turn: thread.turn });
}

// The next step of the script: a command, a long text for agents without tools, or the end.
function step(protocol, body, thread) {
  thread.turn += 1;
  const part = thread.turn;
  if (part > turns) {
    report.finished = true;
    if (JSON.stringify(body).includes("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")) {
      return { call: protocol.call(body, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", part) };
    }
    return { text: "ALL-PARTS-READ: every part was read, none of them leaks." };
  }
  if (!thread.hasTools) return { text: longText(part) };
  return { text: `I read part ${part} next.`, call: protocol.call(body, `cat part_${part}.txt`, part) };
}

// A text that differs from part to part, as long as a result of a tool.
function longText(part) {
  const lines = [];
  for (let line = 0; line < 60; line += 1) {
    const hash = createHash("sha256").update(`${part} ${line}`).digest("hex");
    lines.push(`Part ${part}, gauge ${hash.slice(0, 6)}: the water stands at ${parseInt(hash.slice(6, 9), 16)} mm.`);
  }
  return lines.join("\n");
}

function send(response, { status = 200, json, events, headers = {} }) {
  if (json) {
    const text = JSON.stringify(json);
    response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(text), ...headers });
    response.end(text);
    return;
  }
  response.writeHead(200, { "content-type": "text/event-stream", ...headers });
  for (const event of events) response.write(event);
  response.end();
}

const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, "http://upstream");
  if (pathname === "/report") return send(response, { json: report });
  if (request.method === "HEAD") return response.writeHead(200).end();
  if (pathname === "/v1/models") {
    const created = 1700000000;
    const data = ["gpt-4o", "gpt-5"].map((id) => ({ id, object: "model", created, owned_by: "scripted" }));
    return send(response, { json: { object: "list", data } });
  }
  const protocol = protocols.find(({ path }) => path === pathname);
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const text = Buffer.concat(chunks).toString("utf8");
    if (pathname === "/v1/messages/count_tokens") {
      const { sizes } = messages.items(JSON.parse(text));
      return send(response, { json: { input_tokens: sizes.reduce((sum, size) => sum + size, 0) } });
    }
    if (!protocol || request.method !== "POST") {
      const json = { error: { message: `no ${request.method} ${pathname} here`, type: "invalid_request_error", code: null } };
      return send(response, { status: 404, json });
    }
    try {
      send(response, handle(request, protocol, text));
    } catch (error) {
      fault("invalid", `the checker failed: ${error.stack}`);
      send(response, protocol.refusal(500, "The checker failed."));
    }
  });
});
server.listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
