// Figures, gauges and tables of an inspection: the turn, the window, and all requests with their costs.

import { h, table } from "../dom.js";
import { compact, count, share, usd } from "../format.js";

const SECTIONS = {
  tools: "Tools", system: "System", anchors: "Own pins", conversation: "Conversation",
  tool_results: "Tool results", notes: "Notes",
};

/** Shows the figures of a turn and of all requests, under the first policy. */
export function figuresOf(whole, sides) {
  const { window, refusal } = sides[0].plan;
  const total = whole.policies[0].total;
  const figure = (name, value, more) => h("div", { class: "figure" }, h("dt", {}, name),
    h("dd", {}, value, more && h("small", { class: "muted" }, more)));
  return [
    figure("This request", refusal ? "refused" : `${compact(window.received_tokens)} → ${compact(window.sent_tokens)}`,
      refusal ? "the parts that must stay exceed the limit"
        : window.sent_tokens >= window.received_tokens ? "sent as received"
          : `${share(window.received_tokens - window.sent_tokens, window.received_tokens)} of the tokens are not sent`),
    figure("Limit", compact(window.limit_tokens), `${window.used_percent} % used`),
    figure("Compactions", count(total.compactions), `in ${count(total.requests)} requests`),
    figure("Cached prefix", share(total.reused_tokens, total.sent_tokens), "of all sent tokens"),
    figure("Input bill", usd(total.cost_usd), total.cost_usd === null ? "the model has no known price"
      : `${usd(whole.whole.cost_usd)} if everything were sent`),
  ];
}

/** Shares and marks of each policy's plan, as bars. */
export function gaugesOf(sides) {
  return sides.map((side) => {
    const { window, compaction, sections } = side.plan;
    const most = Math.max(window.limit_tokens, window.sent_tokens);
    const part = (tokens) => `${(Math.min(tokens / most, 1) * 100).toFixed(2)}%`;
    const used = sections.filter((row) => row.sent_tokens > 0);
    const mark = (tokens, name) => h("i", { class: "mark", style: { left: part(tokens) }, title: `${name}: ${count(tokens)}` });
    return h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", {}, `Window, ${side.policy}`),
        h("span", { class: "hint" }, `${count(window.sent_tokens)} of ${count(window.limit_tokens)} tokens; ` +
          `${count(window.window_tokens - window.limit_tokens)} of the model's ${compact(window.window_tokens)} are beyond the limit or reserved for the answer`)),
      h("div", { class: "inspector-gauge", role: "img", "aria-label": "Parts of the sent request, and the marks" },
        used.map((row) => h("span", { class: `part of-${row.section}`, style: { width: part(row.sent_tokens) },
          title: `${SECTIONS[row.section]}: ${count(row.sent_tokens)}` })),
        mark(compaction.low_tokens, "A compaction reduces to"), mark(compaction.trigger_tokens, "The next compaction is above")),
      h("div", { class: "legend" }, used.map((row) => h("span", {}, h("i", { class: `part of-${row.section}` }),
        `${SECTIONS[row.section]} ${compact(row.sent_tokens)}`)),
      h("span", {}, `marks: down to ${compact(compaction.low_tokens)}, compacts above ${compact(compaction.trigger_tokens)}`)),
      side.plan.warnings.map((warning) => h("p", { class: "hint" }, `${warning.text}.`)));
  });
}

/** Shows all requests under each policy, and their compactions; `move` goes to a turn. */
export function totalsOf(whole, move) {
  const all = whole.policies.map((side) => ({ name: side.policy, ...side.total }));
  all.push({ name: "everything sent", ...whole.whole, compactions: null, rewritten_tokens: null, rewrite_usd: null, saved_usd: null });
  const jumps = whole.policies.map((side) => {
    const done = side.turns.filter((row) => row.steps !== null);
    return done.length > 0 && h("details", { open: whole.policies.length === 1 },
      h("summary", {}, `Compactions under ${side.policy}`),
      table(`Compactions under ${side.policy}`, [
        { name: "Turn", of: (row) => h("button", { type: "button", class: "link", onclick: () => move(row.turn) }, String(row.turn)) },
        { name: "Steps", of: (row) => row.steps },
        { name: "Received", kind: "number", of: (row) => count(row.received_tokens) },
        { name: "Sent", kind: "number", of: (row) => count(row.sent_tokens) },
        { name: "Read again", kind: "number", of: (row) => count(row.rewritten_tokens) },
        { name: "Cost of that", kind: "number", of: (row) => usd(row.rewrite_usd) },
        { name: "Saved until the next", kind: "number", of: (row) => usd(savedUntilNext(side.turns, row)) },
      ], done));
  });
  return [h("div", { class: "panel-head" }, h("h2", {}, "All requests"),
    h("span", { class: "hint" }, "Input alone, at the provider's cache prices; the cache is assumed to hold each prefix")),
  table("Totals by policy", [
    { name: "Policy", of: (row) => row.name },
    { name: "Sent", kind: "number", of: (row) => count(row.sent_tokens) },
    { name: "From the cache", kind: "number", of: (row) => share(row.reused_tokens, row.sent_tokens) },
    { name: "Largest prompt", kind: "number", of: (row) => count(row.largest_sent_tokens) },
    { name: "Compactions", kind: "number", of: (row) => count(row.compactions) },
    { name: "Read again", kind: "number", of: (row) => count(row.rewritten_tokens) },
    { name: "Refused", kind: "number", of: (row) => count(row.refused_requests) },
    { name: "Bill", kind: "number", of: (row) => usd(row.cost_usd) },
    { name: "Saved", kind: "number", of: (row) => usd(row.saved_usd) },
  ], all), jumps];
}

/** Adds up the savings from a compaction on, up to the next one. */
function savedUntilNext(turns, from) {
  if (from.saved_usd === null) return null;
  let sum = 0;
  for (const row of turns.slice(from.turn - 1)) {
    if (row.turn > from.turn && row.steps !== null) break;
    sum += Number(row.saved_usd);
  }
  return sum;
}
