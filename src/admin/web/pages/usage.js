// Usage by key, team, model, conversation, agent or class, as chart, table and CSV.

import { chart, fill, slots } from "../chart.js";
import { empty, h, heading, notice, put, table } from "../dom.js";
import { compact, count, duration, share, shortUsd, usd } from "../format.js";
import { range, rangeButtons, remember, usagePath } from "../range.js";

const GROUPS = [["model", "model"], ["team", "team"], ["key", "key"], ["user", "user"], ["agent", "agent"], ["conversation", "conversation"], ["class", "class"]];
const MEASURES = {
  cost_usd: ["Cost", usd, shortUsd],
  prompt_tokens: ["Prompt tokens", compact, compact],
  completion_tokens: ["Output tokens", compact, compact],
  requests: ["Requests", count, compact],
};
const FILTERS = ["model", "team", "key", "agent", "conversation", "class"];
const MAX_ROWS = 200;
const MAX_SERIES = 6;

export default async function render(root, api, params) {
  const state = { time: "7d", by: "model", measure: "cost_usd" };
  for (const name of ["time", "by", "measure", ...FILTERS]) {
    if (params.has(name)) state[name] = params.get(name);
  }
  if (!GROUPS.some(([name]) => name === state.by)) state.by = "model";
  if (!MEASURES[state.measure]) state.measure = "cost_usd";
  const keys = new Map();
  try {
    for (const key of await api.all("/admin/v1/keys", 2000)) keys.set(key.id, key.name);
  } catch (error) {
    if (error.status === 401) throw error;
  }

  const body = h("div", {});
  let shown = 0;
  const show = async () => {
    shown += 1;
    const own = shown;
    const { time: name, ...rest } = state;
    remember("usage", { time: name, ...rest });
    try {
      const found = await load(api, state);
      if (own === shown) put(body, content(state, found, keys, change));
    } catch (error) {
      if (own === shown && error.status !== 401) put(body, notice("error", error.message));
    }
  };
  const change = (values) => {
    for (const [name, value] of Object.entries(values)) {
      if (value === null) delete state[name];
      else state[name] = value;
    }
    return show();
  };
  const select = (label, choices, name) => h("select", {
    "aria-label": label, onchange: (event) => change({ [name]: event.target.value }),
  }, choices.map(([value, text]) => h("option", { value, selected: state[name] === value }, text)));
  put(root,
    heading("Usage",
      select("Measure", Object.entries(MEASURES).map(([value, [text]]) => [value, text]), "measure"),
      select("Group by", GROUPS.map(([value, text]) => [value, `by ${text}`]), "by"),
      rangeButtons(range(state.time).name, (time) => change({ time }))),
    body);
  await show();
}

async function load(api, state) {
  const time = range(state.time);
  const only = Object.fromEntries(FILTERS.filter((name) => state[name] !== undefined).map((name) => [name, state[name]]));
  const query = { since: time.from, until: time.until, by: state.by, ...only };
  const [rows, total] = await Promise.all([
    api.get(usagePath({ ...query, detail: true, limit: MAX_ROWS })),
    api.get(usagePath({ ...query, by: "", detail: true })),
  ]);
  const series = await api.get(usagePath({ ...query, every: time.word }));
  return { time, only, rows: rows.data, isComplete: rows.is_complete, total: total.data[0], series: series.data };
}

function content(state, found, keys, change) {
  const chips = Object.entries(found.only).map(([name, value]) => h("button", {
    type: "button", class: "small", onclick: () => change({ [name]: null }), "aria-label": `Remove the filter ${name}`,
  }, `${name}: ${shownName(name, value, keys)} ×`));
  const head = chips.length > 0 && h("div", { class: "actions notice" }, "Only ", chips);
  if (!found.total) {
    return [head, h("div", { class: "panel" }, empty("No usage in this time",
      h("p", {}, "Choose a longer time, or ", h("a", { href: "#/" }, "see how to send requests"), ".")))];
  }
  return [head, drawing(state, found, keys), listing(state, found, keys)];
}

function shownName(by, value, keys) {
  if (value === "") return by === "key" ? "(no virtual key)" : "(none)";
  return by === "key" ? keys.get(value) ?? value : value;
}

function drawing(state, found, keys) {
  const [title, format, axis] = MEASURES[state.measure];
  const { time, series } = found;
  const of = (row) => Number(row[state.measure]);
  const most = [...found.rows].sort((one, other) => of(other) - of(one)).slice(0, MAX_SERIES);
  const names = most.filter((row) => of(row) > 0).map((row) => row[state.by]);
  const starts = slots(time.from, time.until, time.every);
  const lines = names.map((name, index) => {
    const values = fill(starts, series.filter((row) => row[state.by] === name), of);
    return { label: shownName(state.by, name, keys), values, colour: `--series-${[1, 3, 4, 5, 6, 7][index]}`,
      summary: format(values.reduce((sum, value) => sum + value, 0)) };
  });
  const rest = new Map();
  for (const row of series.filter((row) => !names.includes(row[state.by]))) {
    rest.set(row.start_ms, (rest.get(row.start_ms) ?? 0) + of(row));
  }
  const others = starts.map((start) => rest.get(start) ?? 0);
  const sum = others.reduce((all, value) => all + value, 0);
  if (sum > 0) lines.push({ label: "others", values: others, colour: "--series-2", summary: format(sum) });
  if (lines.length === 0) lines.push({ label: title, values: starts.map(() => 0), colour: "--series-2", summary: format(0) });
  return h("section", { class: "panel" },
    h("div", { class: "panel-head" }, h("h2", {}, `${title} by ${state.by}`), h("small", {}, time.per)),
    chart({ label: `${title} by ${state.by}`, starts, every: time.every, kind: "stack", format, axis, series: lines, height: 220 }));
}

function listing(state, found, keys) {
  const all = Number(found.total.cost_usd);
  const link = (row) => {
    const name = row[state.by];
    const text = shownName(state.by, name, keys);
    // An empty name stands for requests without one, which no filter selects.
    if (name === "" || !FILTERS.includes(state.by)) return text;
    const next = state.by === "model" ? "key" : "model";
    const query = new URLSearchParams({ time: state.time, measure: state.measure, ...found.only, by: next, [state.by]: name });
    return h("a", { href: `#/usage?${query}` }, text);
  };
  const columns = [
    { name: state.by[0].toUpperCase() + state.by.slice(1), kind: "name", of: link },
    { name: "Requests", kind: "number", of: (row) => count(row.requests) },
    { name: "Errors", kind: "number", of: (row) => h("span", { class: row.errors > 0 ? "bad" : "muted" }, count(row.errors)) },
    { name: "Prompt", kind: "number", of: (row) => h("span", { title: count(row.prompt_tokens) }, compact(row.prompt_tokens)) },
    { name: "Cached", kind: "number", of: (row) => share(row.cached_tokens, row.prompt_tokens) },
    { name: "Output", kind: "number", of: (row) => h("span", { title: count(row.completion_tokens) }, compact(row.completion_tokens)) },
    { name: "Left out", kind: "number", of: (row) => share(row.received_tokens - row.sent_tokens, row.received_tokens) },
    { name: "First byte", kind: "number", of: (row) => duration(row.first_byte_p50_ms) },
    { name: "Saved", kind: "number", of: (row) => h("span", { class: Number(row.saved_usd) < 0 ? "bad" : "" }, usd(row.saved_usd)) },
    { name: "Cost", kind: "number", of: (row) => h("span", { title: `$${row.cost_usd}` }, usd(row.cost_usd)) },
    { name: "Share", kind: "number", of: (row) => bar(Number(row.cost_usd), all) },
  ];
  const sorted = [...found.rows].sort((one, other) => Number(other[state.measure]) - Number(one[state.measure]));
  return h("section", { class: "panel" },
    h("div", { class: "panel-head" },
      h("h2", {}, `${count(found.total.requests)} requests, ${usd(found.total.cost_usd)}`),
      h("button", { type: "button", class: "small", onclick: () => download(state, sorted) }, "Download CSV")),
    table(`Usage by ${state.by}`, columns, sorted),
    !found.isComplete && h("p", { class: "hint" }, `The ${MAX_ROWS} most expensive rows are listed.`));
}

function bar(part, total) {
  const size = total > 0 ? (100 * part) / total : 0;
  return h("span", { class: "share meter", title: share(part, total) }, h("span", { style: { width: `${size}%` } }));
}

/** Writes rows as CSV. A cell that a spreadsheet would run as a formula begins with an apostrophe. */
export function csv(rows) {
  const names = Object.keys(rows[0] ?? {});
  const cell = (value) => {
    const isText = typeof value === "string" && !/^-?\d+(\.\d+)?$/.test(value);
    const text = String(value ?? "");
    const safe = isText && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [names.map(cell), ...rows.map((row) => names.map((name) => cell(row[name])))]
    .map((cells) => cells.join(",")).join("\r\n") + "\r\n";
}

function download(state, rows) {
  const address = URL.createObjectURL(new Blob([csv(rows)], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `weir-usage-by-${state.by}-${state.time}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
