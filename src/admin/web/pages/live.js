// Live: requests in flight and ended ones, updated each second. Holds a bounded number of rows.

import { copyable, empty, h, heading, notice, put, table } from "../dom.js";
import { clock, compact, count, duration, share, usd, utc } from "../format.js";

const INTERVAL_MS = 1000;
const MAX_ROWS = 200;

export default async function render(root, api) {
  const status = await api.get("/admin/v1/status");
  const keys = new Map((await api.all("/admin/v1/keys", 2000)).map((key) => [key.id, key.name]));
  const state = { next: 0, rows: [], text: "", isPaused: false, started: null };
  const [totals, running, list, said] = [h("div", {}), h("div", {}), h("div", {}), h("div", {})];

  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    state.isPaused = !state.isPaused;
    pause.textContent = state.isPaused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(state.isPaused));
    if (!state.isPaused) tick();
  } }, "Pause");
  const search = h("input", { type: "search", placeholder: "Filter by any name", "aria-label": "Filter requests", oninput: (event) => {
    state.text = event.target.value.toLowerCase();
    draw();
  } });
  put(root, heading("Live", search, pause), said, h("div", { class: "stack" }, totals, running, list));

  const draw = () => put(list, ended(state, keys, status));
  const take = (look) => {
    // After a restart the numbers begin again.
    if (state.started !== null && look.started_ms !== state.started) state.rows = [];
    const isNew = look.requests.length > 0 || state.started !== look.started_ms;
    state.started = look.started_ms;
    state.next = look.next;
    state.rows = [...look.requests.toReversed(), ...state.rows].slice(0, MAX_ROWS);
    put(totals, sums(look.totals, look));
    put(running, inFlight(look, keys));
    running.hidden = look.running.length === 0;
    if (isNew) draw();
  };

  let timer = null;
  let isOver = false;
  const tick = async () => {
    clearTimeout(timer);
    if (isOver || state.isPaused) return;
    // A hidden page needs no news.
    if (!document.hidden) {
      try {
        take(await api.get(`/admin/v1/live?after=${state.next}&limit=${MAX_ROWS}`));
        put(said);
      } catch (error) {
        if (error.status === 401) return;
        put(said, notice("error", `${error.message} Trying again.`));
      }
    }
    if (!isOver) timer = setTimeout(tick, INTERVAL_MS);
  };
  await tick();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

function sums(totals, look) {
  const removed = totals.received_tokens - totals.sent_tokens;
  const pair = (name, value, about) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, value, about && h("small", {}, about)));
  return h("dl", { class: "figures" },
    pair("In flight", count(look.running.length)),
    pair("Requests", count(totals.requests), `started ${duration(look.now_ms - look.started_ms)} ago`),
    pair("Compactions", count(totals.compactions), totals.observed > 0 && `${count(totals.observed)} only observed`),
    pair("Tokens left out", share(Math.max(0, removed), totals.received_tokens), `${compact(Math.max(0, removed))} of ${compact(totals.received_tokens)}`),
    pair("Spend", usd(totals.cost_usd), totals.unpriced > 0 && `${count(totals.unpriced)} without a price`),
    pair("Saved", usd(totals.saved_usd), totals.observed > 0 && `${usd(totals.planned_saved_usd)} planned`));
}

const model = (request) => (request.model === null ? h("span", { class: "muted" }, request.route)
  : h("span", { title: request.model }, request.model));
const who = (request, keys) => [
  request.key ? keys.get(request.key) ?? request.key : h("span", { class: "muted" }, "own key"),
  request.team && h("small", {}, h("br", {}), request.team),
];
const whose = (request) => [
  request.conversation && h("span", { class: "mono", title: request.conversation }, short(request.conversation)),
  (request.agent || request.class) && h("small", {}, h("br", {}), [request.agent, request.class].filter(Boolean).join(", ")),
];

function short(text) {
  return text.length > 18 ? `${text.slice(0, 8)}…${text.slice(-6)}` : text;
}

function inFlight(look, keys) {
  if (look.running.length === 0) return null;
  return h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "In flight")),
    table("Requests in flight", [
      { name: "For", kind: "number", of: (row) => duration(Math.max(0, look.now_ms - row.begun_ms)) },
      { name: "Model", kind: "clip", of: model },
      { name: "Tokens", kind: "number", of: sizes },
      { name: "Key", kind: "clip", of: (row) => who(row, keys) },
      { name: "Conversation", kind: "clip", of: whose },
    ], look.running.slice(0, 50)));
}

function sizes(row) {
  if (row.received_tokens === null) return "–";
  if (row.sent_tokens === null || row.sent_tokens >= row.received_tokens) return compact(row.received_tokens);
  return h("span", { title: `${count(row.received_tokens)} received, ${count(row.sent_tokens)} sent` },
    h("span", { class: "muted" }, compact(row.received_tokens)), " → ", compact(row.sent_tokens));
}

function tag(row) {
  if (row.error) return h("span", { class: "tag bad" }, row.error);
  if (row.status >= 400) return h("span", { class: "tag bad" }, String(row.status));
  if (row.outcome !== "complete") return h("span", { class: "tag warn" }, row.outcome.replaceAll("_", " "));
  return h("span", { class: "tag good" }, String(row.status ?? ""));
}

function ended(state, keys, status) {
  const text = (row) => [row.model, row.key, keys.get(row.key), row.team, row.conversation, row.agent, row.class, row.error, row.outcome, row.route, row.action]
    .filter(Boolean).join(" ").toLowerCase();
  const rows = state.rows.filter((row) => text(row).includes(state.text));
  if (state.rows.length === 0) {
    return h("div", { class: "panel" }, empty("No requests yet",
      h("p", {}, "They appear here as they end. Point an application at weir:"),
      copyable(`OPENAI_BASE_URL=${status.base_url}`)));
  }
  return h("section", { class: "panel" },
    h("div", { class: "panel-head" }, h("h2", {}, "Ended"), h("small", {}, `newest ${count(rows.length)}`)),
    rows.length === 0 ? empty("No request fits the filter") : table("Ended requests", [
      { name: "Time", kind: "tight", of: (row) => h("time", { title: utc(row.ended_ms) }, clock(row.ended_ms)) },
      { name: "Result", kind: "tight", of: tag },
      { name: "Model", kind: "clip", of: model },
      { name: "Tokens", kind: "number", of: (row) => [sizes(row), did(row)] },
      { name: "Cost", kind: "number", of: (row) => [usd(row.cost_usd),
        row.prompt_tokens && h("small", {}, h("br", {}), `${share(row.cached_tokens ?? 0, row.prompt_tokens)} cached`)] },
      { name: "Duration", kind: "number", of: (row) => [duration(row.duration_ms), h("br", {}), h("small", {}, `first ${duration(row.first_byte_ms)}`)] },
      { name: "Key", kind: "clip", of: (row) => who(row, keys) },
      { name: "Conversation", kind: "clip", of: whose },
    ], rows));
}

/** Shows the action under the tokens, and marks the requests that caused a compaction. */
function did(row) {
  if (!row.action || row.action === "pass") return null;
  const mark = row.steps !== null && h("span", { class: "tag warn", title: `compacted by ${row.steps}` }, "compaction");
  return [h("br", {}), h("small", {}, row.action, " "), mark];
}
