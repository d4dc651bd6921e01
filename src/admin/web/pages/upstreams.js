// Upstreams with their health, routes, and limits and ratios learned from their answers.

import { empty, h, heading, put, table } from "../dom.js";
import { count, duration, moment, share, utc } from "../format.js";

// As many as the listener keeps.
const MAX_RECENT = 500;

const STATES = { ready: ["good", "ready"], troubled: ["warn", "failing"], skipped: ["bad", "skipped after failures"] };
const SOURCES = { told: "stated in a refusal", stepped: "stepping down after a refusal", raised: "a longer prompt that was accepted" };

export default async function render(root, api) {
  const body = h("div", {});
  const show = async () => {
    const [status, live] = await Promise.all([api.get("/admin/v1/status"), api.get(`/admin/v1/live?limit=${MAX_RECENT}`)]);
    put(body, content(status, live));
  };
  put(root, heading("Upstreams", h("button", { type: "button", onclick: show }, "Refresh")), body);
  await show();
}

function content(status, live) {
  const isOne = status.upstreams.length === 1;
  const recent = (name) => live.requests.filter((request) => isOne || (request.upstream ?? "default") === name);
  return [
    h("section", { class: "panel" }, table("Upstreams", [
      { name: "Name", kind: "name", of: (row) => h("b", {}, row.name) },
      { name: "Address", kind: "name", of: (row) => h("code", {}, row.origin) },
      { name: "State", of: (row) => {
        const [kind, word] = STATES[row.state];
        return h("span", { class: `tag ${kind}` }, word);
      } },
      { name: "Failures", kind: "number", of: (row) => count(row.failures_in_a_row) },
      { name: "Recent requests", kind: "number", of: (row) => count(recent(row.name).length) },
      { name: "Recent errors", kind: "number", of: (row) => {
        const requests = recent(row.name);
        const errors = requests.filter((request) => request.error || request.status >= 400);
        return requests.length > 0 ? share(errors.length, requests.length) : "–";
      } },
      { name: "First byte", kind: "number", of: (row) => duration(median(recent(row.name).map((request) => request.first_byte_ms))) },
      { name: "Key", kind: "tight", of: (row) => (row.has_own_key ? "weir's own" : row.gets_callers_key ? "the caller's" : "none") },
      { name: "Compacts", of: (row) => (row.compacts ? "upstream, if asked" : "weir") },
    ], status.upstreams),
    h("p", { class: "hint" }, "Failures are those in a row. Recent are the newest 500 requests of this weir; half of them had their first byte in the time shown. An upstream with 5 failures in a row is skipped for 10 seconds if there is another.")),
    status.routes.length > 0 && h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Routes")),
      table("Routes", [
        { name: "Models", kind: "name", of: (row) => row.models.join(", ") },
        { name: "Upstream", kind: "name", of: (row) => row.upstream },
      ], status.routes)),
    h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Learned windows"), h("small", {}, "from refusals as too long")),
      status.learned.limits.length === 0
        ? empty("No limits learned", h("p", {}, "weir learns a model's real window when an upstream refuses a prompt as too long."))
        : table("Learned windows", [
          { name: "Model", kind: "name", of: (row) => row.model },
          { name: "Upstream", kind: "name", of: (row) => row.upstream },
          { name: "Window", kind: "number", of: (row) => count(row.window_tokens) },
          { name: "Input limit", kind: "number", of: (row) => count(row.max_input_tokens) },
          { name: "Source", of: (row) => SOURCES[row.source] ?? row.source },
          ...times(),
        ], status.learned.limits)),
    h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Learned token ratios"), h("small", {}, "the model's tokens for one of weir's count")),
      status.learned.ratios.length === 0
        ? empty("No ratios learned", h("p", {}, "For models whose tokenizer weir does not have, it corrects its count by the usage in answers."))
        : table("Learned ratios", [
          { name: "Model", kind: "name", of: (row) => row.model },
          { name: "Upstream", kind: "name", of: (row) => row.upstream },
          { name: "Ratio", kind: "number", of: (row) => row.token_ratio.toFixed(3) },
          { name: "Digits", of: (row) => (row.digits_in_threes ? "in threes" : "as counted") },
          ...times(),
        ], status.learned.ratios)),
  ];
}

function times() {
  const time = (ms) => h("span", { title: utc(ms) }, moment(ms));
  return [
    { name: "Learned", of: (row) => time(row.learned_ms) },
    { name: "Until", of: (row) => time(row.expires_ms) },
  ];
}

function median(values) {
  const sorted = values.filter((value) => value !== null).sort((one, other) => one - other);
  return sorted.length > 0 ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
}
