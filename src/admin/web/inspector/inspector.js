// Inspector: a conversation turn by turn, before and after, with the reasons and costs of each change.
// The text stays in this page's memory; the address holds only the choices.

import { field, h, heading, notice, put, segmented } from "../dom.js";
import { compact, count, usd } from "../format.js";
import { detail } from "./detail.js";
import { FATES } from "./fates.js";
import { pictured } from "./items.js";
import { list } from "./list.js";
import { picture } from "./picture.js";
import { chooser, dropZone } from "./source.js";
import { figuresOf, gaugesOf, totalsOf } from "./summary.js";
import { timeline } from "./timeline.js";

const PATH = "/admin/v1/inspect";
/** Turns whose plans are kept at hand. */
const MOST_KEPT = 60;
/** Conversation that stays open while other pages are shown, with its choices: `{own, choose}`. */
let kept = null;

/** Loads the inspector's own styles. */
function styles() {
  const href = "/inspector/inspector.css";
  if (document.querySelector(`link[href="${href}"]`)) return Promise.resolve();
  return new Promise((resolve) => {
    document.head.append(h("link", { rel: "stylesheet", href, onload: resolve, onerror: resolve }));
  });
}

export default async function render(root, api, params) {
  const [choices] = await Promise.all([api.get(PATH), styles()]);
  const ended = [];
  const choose = kept && params.size === 0 ? kept.choose : {
    policy: known(params.get("policy"), choices.policies) ?? "default",
    compare: known(params.get("compare"), choices.policies) ?? "",
    limit: isLimit(params.get("limit")) ? params.get("limit") : "",
    model: params.get("model") ?? "",
    turn: Number(params.get("turn")) || null,
    view: params.get("view") === "list" ? "list" : "picture",
    conversation: Number(params.get("conversation")) || 0,
  };
  let view = null;

  function start() {
    leave();
    kept = null;
    choose.turn = null;
    choose.conversation = 0;
    remember(choose, false);
    const source = chooser({ opened: open, mostBytes: choices.max_body_bytes, sample, api });
    put(root, heading("Inspector"), source.box);
    ended.push(dropZone(root, source.take));
  }

  async function sample() {
    const answer = await fetch("/inspector/sample.json", { credentials: "same-origin" });
    if (!choose.limit) choose.limit = "40%";
    if (!choose.compare && choose.policy === "default") choose.compare = "zones";
    open({ text: await answer.text(), name: "sample", isSample: true });
  }

  function open(own) {
    leave();
    // A live conversation is planned as it was.
    if (own.limit_tokens) choose.limit = String(own.limit_tokens);
    choose.policy = known(own.policy, choices.policies) ?? choose.policy;
    kept = { own, choose };
    view = inspection({ root, api, choices, choose, own, start });
    ended.push(view.end);
    return view.load();
  }

  function leave() {
    while (ended.length) ended.pop()();
  }

  if (params.get("sample") === "1" && !kept?.own.isSample) await sample();
  else if (kept) await open(kept.own);
  else start();
  return leave;
}

const known = (value, all) => (all.includes(value) ? value : null);

/** Writes the choices into the address, without a new entry in the history. */
function remember(choose, isSample) {
  const params = new URLSearchParams();
  if (isSample) params.set("sample", "1");
  if (choose.policy !== "default") params.set("policy", choose.policy);
  for (const name of ["compare", "limit", "model", "turn", "conversation"]) {
    if (choose[name]) params.set(name, String(choose[name]));
  }
  if (choose.view === "list") params.set("view", "list");
  const text = params.toString();
  history.replaceState(null, "", `#/inspector${text ? `?${text}` : ""}`);
}

/** Parses `8000`, `8k` or `40%` into members of a request; throws on other texts. */
export function limitOf(text) {
  const own = text.trim().toLowerCase().replaceAll(",", "");
  if (own === "") return {};
  const found = own.match(/^(\d+(?:\.\d+)?)\s*(%|k|m)?$/);
  const [number, unit] = found ? [Number(found[1]), found[2]] : [NaN, ""];
  if (unit === "%" && number >= 1 && number <= 100) return { limit_percent: Math.round(number) };
  const tokens = Math.round(number * ({ k: 1000, m: 1_000_000 }[unit] ?? 1));
  if (unit !== "%" && tokens >= 1) return { max_input_tokens: tokens };
  throw new Error("Write tokens, such as 8000 or 8k, or a share, such as 40%.");
}

function isLimit(text) {
  try {
    return text !== null && limitOf(text) !== null;
  } catch {
    return false;
  }
}

/** Shows one conversation. */
function inspection({ root, api, choices, choose, own, start }) {
  let text = own.text;
  let conversation = choose.conversation;
  let whole = null;
  let turn = choose.turn;
  let opened = null;
  let only = null;
  let asking = null;
  const plans = new Map();
  const said = h("div", {});
  const figures = h("dl", { class: "figures inspector-figures" });
  const totals = h("section", { class: "panel" });
  const legend = h("div", { class: "inspector-legend", role: "group", "aria-label": "Fates; choose one to see it alone" });
  const gauge = h("div", { class: "inspector-gauges" });
  const line = timeline((to) => { turn = to; changed(); });
  const shape = picture({ onopen: (place, isByKey) => openMessage(place).then(() => (isByKey ? panel.focus() : panel.reveal())) });
  const rows = list((message) => openMessage({ message }).then(() => panel.reveal()));
  const panel = detail({
    step: (by) => step(by),
    whole: () => openMessage(opened, true),
    close: () => {
      closeDetail();
      if (choose.view === "picture") shape.focus();
    },
    openNote: (policy, note) => openMessage({ side: whole.policies.findIndex((side) => side.policy === policy), note }),
  });

  const policies = (withNone) => [...(withNone ? [["", "nothing"]] : []), ...choices.policies.map((name) => [name, name])];
  const select = (name, options) => h("select", {
    onchange: (event) => {
      choose[name] = event.target.value;
      again();
    },
  }, options.map(([value, label]) => h("option", { value, selected: value === choose[name] }, label)));
  const typed = (name, placeholder) => h("input", {
    value: choose[name], placeholder, spellcheck: "false", autocomplete: "off", size: "14",
    onchange: (event) => {
      const value = event.target.value.trim();
      try {
        if (name === "limit") limitOf(value);
      } catch (error) {
        return put(said, notice("error", error.message));
      }
      choose[name] = value;
      again();
    },
  });
  const several = h("select", { onchange: (event) => {
    conversation = Number(event.target.value);
    choose.conversation = conversation;
    turn = null;
    again();
  } });
  const severalField = field("Conversation", several);
  const options = h("section", { class: "panel inspector-options", "aria-label": "Options" },
    severalField,
    field("Policy", select("policy", policies(false))),
    field("Compare with", select("compare", policies(true))),
    field("Limit (8k or 40%)", typed("limit", "the model's")),
    field("Model", typed("model", "the request's")));
  severalField.hidden = true;
  const zoom = h("div", { class: "actions" },
    h("button", { type: "button", class: "small", "aria-label": "Zoom out", onclick: () => shape.zoom(1 / 1.5) }, "−"),
    h("button", { type: "button", class: "small", "aria-label": "Zoom in", onclick: () => shape.zoom(1.5) }, "+"),
    h("button", { type: "button", class: "small", onclick: () => shape.zoom(0) }, "Fit"));
  const views = segmented("View", [["picture", "Picture"], ["list", "List"]], choose.view, (name) => {
    choose.view = name;
    showView();
    remember(choose, own.isSample);
  });
  const main = h("section", { class: "panel inspector-main", "aria-label": "Before and after" },
    h("div", { class: "panel-head" }, h("h2", {}, "Before and after"), h("div", { class: "actions" }, zoom, views)),
    legend, shape.box, rows.box);
  const results = h("div", { class: "inspector-results" },
    figures, line.box, h("div", { class: "inspector-columns" }, main, panel.box), gauge, totals);
  const exporting = h("button", { type: "button", onclick: () => save() }, "Export JSON");
  const { journal } = own;
  const recorded = journal && h("p", { class: "hint inspector-journal" },
    `In the journal: ${count(journal.requests)} requests, ${compact(journal.received_tokens)} tokens received and ` +
    `${compact(journal.sent_tokens)} sent, ${count(journal.compacted)} requests compacted, cost ` +
    `${usd(journal.cost_usd)}, saved ${usd(journal.saved_usd)}.`);
  put(root, heading("Inspector",
    h("span", { class: "hint" }, own.isSample ? "Sample: an agent adds a feature" : own.name),
    exporting, h("button", { type: "button", onclick: start }, "Open another")), options, recorded, said, results);
  results.hidden = true;
  exporting.disabled = true;

  /** Members of a request for some turn. A share is known in tokens after all requests are planned. */
  function asked(more) {
    const names = choose.compare && choose.compare !== choose.policy ? [choose.policy, choose.compare] : [choose.policy];
    const limit = more.turns === false && whole?.max_input_tokens
      ? { max_input_tokens: whole.max_input_tokens } : limitOf(choose.limit);
    return { text, conversation, policies: names, ...limit,
      ...(own.protocol ? { protocol: own.protocol } : {}),
      ...(choose.model || own.model ? { model: choose.model || own.model } : {}), ...more };
  }

  /** Plans the whole conversation. */
  async function load() {
    asking?.abort();
    const own_ = asking = new AbortController();
    put(said, notice("info", h("span", { class: "spinner" }), "Planning each request …"));
    results.setAttribute("aria-busy", "true");
    try {
      const found = await api.post(PATH, asked({ ...(turn ? { turn } : {}) }), own_.signal);
      put(said);
      remember(choose, own.isSample);
      plans.clear();
      whole = found;
      turn = found.turn;
      plans.set(turn, found.policies);
      shorten(found);
      showConversations(found);
      results.hidden = false;
      exporting.disabled = false;
      line.set(found, turn);
      put(totals, totalsOf(whole, line.move));
      showTurn();
    } catch (error) {
      if (error.name === "AbortError") return;
      // A turn of another conversation is no reason to fail.
      if (turn && /^turn is /.test(error.message)) {
        turn = null;
        return load();
      }
      results.hidden = whole === null;
      put(said, notice("error", error.message));
    } finally {
      if (asking === own_) results.removeAttribute("aria-busy");
    }
  }

  /** Keeps only the line of a trace that is shown, so that each turn sends little. */
  function shorten(found) {
    if (found.form !== "trace" || whole.all) return;
    const lines = own.text.split("\n").filter((row) => row.trim());
    whole.all = found.conversations;
    text = lines[found.conversation];
    conversation = 0;
  }

  function showConversations(found) {
    const all = found.all ?? found.conversations;
    severalField.hidden = all.length < 2;
    put(several, all.map((row, index) => h("option", { value: String(index), selected: index === choose.conversation },
      `${row.id} (${compact(row.bytes)} bytes)`)));
  }

  function again() {
    // Another conversation of a trace is found in the whole text.
    text = own.text;
    conversation = choose.conversation;
    opened = null;
    panel.hide();
    load();
  }

  let timer = 0;
  /** Shows another turn: at once if its plan is at hand, else when it arrives. */
  function changed() {
    choose.turn = turn;
    clearTimeout(timer);
    timer = setTimeout(() => remember(choose, own.isSample), 250);
    if (plans.has(turn)) return showTurn();
    if (!isFetching) fetchTurn();
  }

  let isFetching = false;
  async function fetchTurn() {
    isFetching = true;
    try {
      while (whole && !plans.has(turn)) {
        const [wanted, of] = [turn, whole];
        const found = await api.post(PATH, asked({ turn: wanted, turns: false }), asking?.signal);
        // Other options may have been chosen meanwhile.
        if (of === whole) plans.set(wanted, found.policies);
        if (plans.size > MOST_KEPT) plans.delete(plans.keys().next().value);
      }
      if (whole) showTurn();
    } catch (error) {
      if (error.name !== "AbortError") put(said, notice("error", error.message));
    } finally {
      isFetching = false;
    }
  }

  const sides = () => plans.get(turn);

  function showTurn() {
    const own_ = sides();
    put(figures, figuresOf(whole, own_));
    showLegend(own_);
    shape.set(pictured(own_));
    rows.set(own_[0].plan.messages, own_[0].plan.appearances);
    put(gauge, gaugesOf(own_));
    showView();
    if (opened?.message !== undefined && opened.message < own_[0].plan.messages.length) openMessage(opened);
    else if (opened) closeDetail();
  }

  function showView() {
    const isList = choose.view === "list";
    shape.box.hidden = isList;
    zoom.hidden = isList;
    rows.box.hidden = !isList;
    if (isList) rows.paint();
  }

  function showLegend(own_) {
    const { messages, appearances } = own_[0].plan;
    const sums = new Map();
    appearances.forEach((fate, index) => {
      const [number, tokens] = sums.get(fate) ?? [0, 0];
      sums.set(fate, [number + 1, tokens + messages[index].received_tokens]);
    });
    if (only && !sums.has(only)) filter(null);
    const of = own_.length > 1 && h("span", { class: "hint" }, `Fates under ${own_[0].policy}:`);
    put(legend, of, Object.entries(FATES).filter(([fate]) => sums.has(fate)).map(([fate, [label, meaning, letter]]) => {
      const [number, tokens] = sums.get(fate);
      return h("button", { type: "button", class: `fate ${fate}`, "aria-pressed": String(only === fate), title: meaning,
        onclick: () => {
          filter(only === fate ? null : fate);
          showLegend(own_);
        } },
      h("b", { "aria-hidden": "true" }, letter), `${label} ${count(number)}`, h("small", {}, compact(tokens)));
    }));
  }

  function filter(fate) {
    only = fate;
    shape.filter(fate);
    rows.filter(fate);
  }

  async function openMessage(place, isWhole = false) {
    opened = place;
    panel.loading();
    shape.select(place);
    if (place.message !== undefined) rows.select(place.message);
    const at = turn;
    const more = place.note === undefined ? { message: place.message } : { note: place.note };
    try {
      const found = await api.post(PATH, asked({ turn: at, turns: false, whole: isWhole, ...more }), asking?.signal);
      if (opened !== place || at !== turn) return;
      const own_ = sides();
      if (place.note !== undefined) {
        const side = own_[place.side];
        const row = side.plan.notes.find((note) => note.number === place.note);
        panel.note(side.policy, row, found.policies[place.side].opened);
      } else {
        panel.message(own_.map((side, index) => ({ policy: side.policy, row: side.plan.messages[place.message],
          fate: side.plan.appearances[place.message], opened: found.policies[index].opened })));
      }
    } catch (error) {
      if (error.name !== "AbortError" && opened === place) panel.failed(error.message);
    }
  }

  function step(by) {
    const last = sides()[0].plan.messages.length - 1;
    const from = opened?.message ?? (by > 0 ? -1 : last + 1);
    openMessage({ message: Math.min(Math.max(from + by, 0), last) });
  }

  function closeDetail() {
    opened = null;
    panel.hide();
    shape.select(null);
    rows.select(null);
  }

  /** Offers the inspection as a file. */
  function save() {
    const shown = { ...whole, turn, policies: whole.policies.map((side, index) => ({ ...side, ...sides()[index],
      turns: side.turns, total: side.total })) };
    const url = URL.createObjectURL(new Blob([JSON.stringify(shown, null, 1)], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = "weir-inspection.json";
    link.click();
    URL.revokeObjectURL(url);
  }

  return {
    load,
    end() {
      asking?.abort();
      clearTimeout(timer);
      whole = null;
      line.end();
      shape.end();
    },
  };
}
