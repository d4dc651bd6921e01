// Overview: spend, tokens, savings, cache, latency and errors over time.

import { chart, fill, slots } from "../chart.js";
import { copyable, empty, h, heading, notice, put, table } from "../dom.js";
import { compact, count, duration, share, shortUsd, usd } from "../format.js";
import { range, rangeButtons, remember, usagePath } from "../range.js";

export default async function render(root, api, params) {
  let shown = 0;
  const body = h("div", {});
  const show = async (name) => {
    shown += 1;
    const own = shown;
    const time = range(name);
    const query = { since: time.from, until: time.until, detail: true };
    const [series, totals, models, status] = await Promise.all([
      api.get(usagePath({ ...query, every: time.word })),
      api.get(usagePath(query)),
      api.get(usagePath({ ...query, by: "model", limit: 6 })),
      api.get("/admin/v1/status"),
    ]);
    if (own !== shown) return;
    const total = totals.data[0];
    if (total) put(body, content(time, series.data, total, models.data));
    else put(body, nothing(name, status));
  };
  const choose = async (name) => {
    remember("", { time: name });
    try {
      await show(name);
    } catch (error) {
      if (error.status !== 401) put(body, notice("error", error.message));
    }
  };
  const first = params.get("time") ?? "today";
  put(root, heading("Overview", rangeButtons(range(first).name, choose)), body);
  await show(first);
}

function nothing(name, status) {
  const when = { today: "today", "7d": "in the last 7 days", "30d": "in the last 30 days" }[range(name).name];
  if (!status.store.is_recording) {
    return h("div", { class: "panel" }, empty("Requests are not recorded",
      h("p", {}, "The configuration has ", h("code", {}, "ledger.enabled = false"),
        ". Set it to true to see spend, tokens and savings here. "),
      h("p", {}, h("a", { href: "#/live" }, "Live"), " shows requests as they come.")));
  }
  return h("div", { class: "panel" }, empty(`No requests ${when}`,
    h("p", {}, "Point an application at weir, and what it sends, costs and saves appears here:"),
    copyable(`OPENAI_BASE_URL=${status.base_url}`),
    status.mode.callers === "keys"
      ? h("p", {}, "Callers need a virtual key: ", h("a", { href: "#/keys" }, "create one"), ".")
      : h("p", {}, "Callers keep their own API keys.")));
}

function figure(name, value, about, title) {
  return h("div", { class: "figure", title }, h("dt", {}, name),
    h("dd", {}, value, about && h("small", {}, about)));
}

function content(time, rows, total, models) {
  const saved = Number(total.saved_usd);
  const removed = total.received_tokens - total.sent_tokens;
  const planned = Number(total.planned_saved_usd);
  const figures = h("dl", { class: "figures" },
    figure(saved < 0 ? "Extra cost" : "Saved", h("span", { class: saved < 0 ? "bad" : "" }, usd(Math.abs(saved))),
      saved < 0 ? "compaction cost more than it saved" : savedShare(saved, Number(total.cost_usd)), `$${total.saved_usd}`),
    figure("Spend", usd(total.cost_usd), `${count(total.requests)} requests`, `$${total.cost_usd}`),
    planned !== 0 && figure("Planned savings", usd(total.planned_saved_usd), "by compactions that observe mode left out", `$${total.planned_saved_usd}`),
    figure("Tokens sent", compact(total.sent_tokens), removed > 0
      ? `${share(removed, total.received_tokens)} of ${compact(total.received_tokens)} left out`
      : `${compact(total.received_tokens)} received`, count(total.sent_tokens)),
    figure("From the cache", share(total.cached_tokens, total.prompt_tokens),
      `${compact(total.cached_tokens)} of ${compact(total.prompt_tokens)} prompt tokens`),
    figure("First byte", duration(total.first_byte_p50_ms), `95 % within ${duration(total.first_byte_p95_ms)}`),
    figure("Errors", count(total.errors), `${share(total.errors, total.requests)} of requests`));
  return [
    gaps(total),
    figures,
    h("div", { class: "grid" }, charts(time, rows, total).map(([title, about, drawn]) => h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", {}, title), about && h("small", {}, about)), drawn))),
    byModel(models, total, time),
  ];
}

function savedShare(saved, cost) {
  return cost + saved > 0 ? `${share(saved, cost + saved)} of the cost without weir` : "by compaction, net of cache";
}

/** Says which figures are incomplete. */
function gaps(total) {
  if (total.unpriced === 0 && total.estimated === 0) return null;
  const parts = [];
  if (total.unpriced > 0) {
    parts.push(h("span", {}, `${count(total.unpriced)} requests have no price, so the spend leaves them out. Give their model a price in `,
      h("code", {}, "[models.\"NAME\"]"), ". "));
  }
  if (total.estimated > 0) {
    parts.push(`${count(total.estimated)} requests are estimated, since their answer did not end with usage.`);
  }
  return h("div", { class: "notice warn" }, parts);
}

function charts(time, rows, total) {
  const starts = slots(time.from, time.until, time.every);
  const of = (value) => fill(starts, rows, value);
  const known = (value) => fill(starts, rows, value, null);
  const common = { starts, every: time.every };
  let sum = 0;
  const savings = of((row) => Number(row.saved_usd)).map((value) => (sum += value));
  const { per } = time;
  return [
    ["Savings", "running sum, cache rewrites included", chart({ ...common, label: "Savings", format: usd, axis: shortUsd, series: [
      { label: "Saved", values: savings, colour: "--series-3", fill: true, summary: usd(total.saved_usd) },
    ] })],
    ["Spend", per, chart({ ...common, label: "Spend", kind: "bars", format: usd, axis: shortUsd, series: [
      { label: "Spend", values: of((row) => Number(row.cost_usd)), colour: "--series-1", summary: usd(total.cost_usd) },
    ] })],
    ["Conversation tokens", per, chart({ ...common, label: "Tokens received and sent", format: compact, axis: compact, series: [
      { label: "Received", values: of((row) => row.received_tokens), colour: "--series-2", summary: compact(total.received_tokens) },
      { label: "Sent", values: of((row) => row.sent_tokens), colour: "--series-1", fill: true, summary: compact(total.sent_tokens) },
    ] })],
    ["Prompt tokens by provider", per, chart({ ...common, label: "Prompt tokens from the cache and new", kind: "stack", format: compact, axis: compact, series: [
      { label: "From the cache", values: of((row) => row.cached_tokens), colour: "--series-3", summary: compact(total.cached_tokens) },
      { label: "New", values: of((row) => Math.max(0, row.prompt_tokens - row.cached_tokens)), colour: "--series-4",
        summary: compact(Math.max(0, total.prompt_tokens - total.cached_tokens)) },
    ] })],
    ["Latency to the first byte", null, chart({ ...common, label: "Latency to the first byte", format: duration, axis: duration, series: [
      { label: "Half within", values: known((row) => row.first_byte_p50_ms), colour: "--series-1", summary: duration(total.first_byte_p50_ms) },
      { label: "95 % within", values: known((row) => row.first_byte_p95_ms), colour: "--series-5", summary: duration(total.first_byte_p95_ms) },
    ] })],
    ["Requests", per, chart({ ...common, label: "Requests with and without errors", kind: "stack", format: count, axis: compact, series: [
      { label: "Answered", values: of((row) => row.requests - row.errors), colour: "--series-2", summary: count(total.requests - total.errors) },
      { label: "Errors", values: of((row) => row.errors), colour: "--series-6", summary: count(total.errors) },
    ] })],
  ];
}

function byModel(models, total, time) {
  const cost = Number(total.cost_usd);
  return h("section", { class: "panel" },
    h("div", { class: "panel-head" }, h("h2", {}, "Models"),
      h("a", { href: `#/usage?by=model&time=${time.name}` }, "All usage")),
    table("Usage by model", [
      { name: "Model", kind: "name", of: (row) => row.model || "(not named)" },
      { name: "Requests", kind: "number", of: (row) => count(row.requests) },
      { name: "Tokens sent", kind: "number", of: (row) => compact(row.sent_tokens) },
      { name: "From the cache", kind: "number", of: (row) => share(row.cached_tokens, row.prompt_tokens) },
      { name: "First byte", kind: "number", of: (row) => duration(row.first_byte_p50_ms) },
      { name: "Cost", kind: "number", of: (row) => usd(row.cost_usd) },
      { name: "Share", kind: "number", of: (row) => share(Number(row.cost_usd), cost) },
    ], models));
}
