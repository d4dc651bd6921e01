// Configuration in force without secrets, the last reload, and the state of this weir.

import { copyable, empty, h, heading, notice, put, table } from "../dom.js";
import { compact, count, duration, moment, utc } from "../format.js";

const EFFECTS = { moves_cuts: "compaction points may move", next_request: "from the next request on", restart: "needs a restart" };

export default async function render(root, api) {
  const body = h("div", {});
  const state = { text: "", isAll: false };
  const status = await api.get("/admin/v1/status");
  const settings = h("div", {});
  const draw = () => put(settings, listing(status.configuration, state));
  const search = h("input", { type: "search", placeholder: "Filter keys", "aria-label": "Filter keys", oninput: (event) => {
    state.text = event.target.value.toLowerCase();
    draw();
  } });
  const all = h("input", { type: "checkbox", onchange: (event) => {
    state.isAll = event.target.checked;
    draw();
  } });
  put(body,
    h("div", { class: "grid" }, about(status), reload(status.reload)),
    h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", {}, "Configuration in force"),
        h("div", { class: "controls" }, search, h("label", { class: "check" }, all, "defaults too"))),
      settings));
  draw();
  put(root, heading("Configuration"), body);
}

function about(status) {
  const { store } = status;
  const stores = { file: store.file ?? "a file", server: "PostgreSQL", memory: "memory, lost when weir ends", failing: "failing: see the log" };
  const pairs = [
    ["Version", status.version],
    ["Started", h("span", { title: utc(status.started_ms) }, `${moment(status.started_ms)}, ${duration(status.uptime_ms)} ago`)],
    ["Instance", h("code", {}, status.instance)],
    ["Base URL", copyable(status.base_url)],
    ["Callers", status.mode.callers === "keys" ? "need a virtual key" : "send their own keys"],
    ["Conversations", status.mode.conversations === "compact" ? "are made to fit" : "are only observed"],
    ["Store", h("span", { class: store.state === "failing" ? "bad" : "" }, stores[store.state])],
    ["Writes", `${compact(store.writes)}, ${count(store.queued)} waiting${store.failed_writes > 0 ? `, ${count(store.failed_writes)} failed` : ""}`],
    ["Counts", store.counts_in_redis ? "in Redis, shared by all instances" : "in this process"],
    ["Requests", store.is_recording ? `recorded, kept for ${count(store.requests_kept_days)} days` : "not recorded"],
  ];
  return h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "This weir")),
    h("dl", { class: "pairs" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function reload(last) {
  const head = h("div", { class: "panel-head" }, h("h2", {}, "Last reload"),
    last && h("small", { title: utc(last.at_ms) }, moment(last.at_ms)));
  if (!last) {
    return h("section", { class: "panel" }, head, empty("Not reloaded since the start",
      h("p", {}, "weir reads its file again when it changes, and on SIGHUP.")));
  }
  if (!last.is_applied) {
    return h("section", { class: "panel" }, head,
      notice("error", "Refused: the configuration before stays in force."),
      h("ul", {}, last.problems.map((problem) => h("li", {}, problem))));
  }
  return h("section", { class: "panel" }, head, h("p", {}, h("span", { class: "tag good" }, "applied")),
    last.changes.length === 0 ? h("p", { class: "muted" }, "Keys and certificates were read again; no setting changed.")
      : table("Changed keys", [
        { name: "Key", kind: "name", of: (row) => h("code", {}, row.key) },
        { name: "Applies", of: (row) => EFFECTS[row.effect] ?? row.effect },
      ], last.changes));
}

function listing(rows, state) {
  const found = rows.filter((row) => (state.isAll || !row.is_default) && `${row.key} ${row.value}`.toLowerCase().includes(state.text));
  if (found.length === 0) {
    return state.text ? empty("No key fits the filter")
      : empty("All keys have their defaults", h("p", {}, "weir runs without a configuration file. ",
        h("code", {}, "weir serve --config weir.toml"), " names one."));
  }
  return table("Configuration in force", [
    { name: "Key", kind: "name", of: (row) => h("code", {}, row.key) },
    { name: "Value", kind: "name", of: (row) => h("code", {}, row.value === "" ? "\"\"" : row.value) },
    { name: "Source", kind: "name", of: (row) => h("span", { class: row.is_default ? "muted" : "" }, row.source) },
  ], found);
}
