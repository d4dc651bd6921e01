// Budgets: their state, burn-down and projected end; set and remove.

import { chart, slots } from "../chart.js";
import { confirmed, empty, field, h, heading, notice, put, table } from "../dom.js";
import { compact, count, duration, moment, share, shortUsd, usd, utc } from "../format.js";
import { usagePath } from "../range.js";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const SCOPES = [["all", "all requests"], ["team", "a team"], ["key", "a key"], ["user", "a user"], ["organisation", "an organisation"], ["model", "a model"]];
const WINDOWS = [["day", "a day"], ["month", "a month"], ["week", "a week"], ["hour", "an hour"], ["minute", "a minute"], ["24h", "24 hours, rolling"], ["30d", "30 days, rolling"], ["total", "in total"]];

export default async function render(root, api) {
  const said = h("div", {});
  const list = h("div", { class: "stack" });
  const show = async () => {
    const { data } = await api.get("/admin/v1/budgets");
    const now = Date.now();
    const remove = async (budget) => {
      const is = await confirmed("Remove the budget?", `${budget.budget} limits nothing from the next request on. Its spending stays in the journal.`, "Remove");
      if (!is) return;
      await act(() => api.remove(`/admin/v1/budgets?${new URLSearchParams({ id: budget.budget })}`), `Removed ${budget.budget}.`);
    };
    put(list, data.length === 0
      ? h("div", { class: "panel" }, empty("No budgets",
        h("p", {}, "A budget stops requests before they cost more than you allow. Set the first one above, such as $20 a day for all.")))
      : data.map((budget) => card(api, budget, now, remove)));
  };
  const act = async (action, done) => {
    try {
      await action();
      await show();
      put(said, notice("good", done));
    } catch (error) {
      put(said, notice("error", error.message));
    }
  };
  put(root, heading("Budgets"), said, h("div", { class: "stack" }, form(api, act), list));
  await show();
}

function form(api, act) {
  const scope = h("select", { onchange: () => sync() }, SCOPES.map(([value, text]) => h("option", { value }, text)));
  const name = h("input", { type: "text", maxlength: "200", placeholder: "name, or * for each its own", disabled: true });
  const amount = h("input", { type: "text", inputmode: "decimal", required: true, placeholder: "20.00" });
  const measure = h("select", {}, h("option", { value: "usd" }, "dollars"), h("option", { value: "tokens" }, "tokens"));
  const window_ = h("select", {}, WINDOWS.map(([value, text]) => h("option", { value }, text)));
  const warn = h("input", { type: "number", min: "0", max: "100", value: "80" });
  const sync = () => {
    name.disabled = scope.value === "all";
    name.required = !name.disabled;
    if (name.disabled) name.value = "";
  };
  return h("details", { class: "panel" },
    h("summary", {}, h("h2", { class: "inline" }, "Set a budget")),
    h("form", { class: "form", onsubmit: (event) => {
      event.preventDefault();
      const body = { scope: scope.value === "all" ? "all" : `${scope.value}:${name.value.trim()}`, per: window_.value, warn_at: Number(warn.value) / 100 };
      if (measure.value === "usd") body.usd = amount.value.trim();
      else body.tokens = Number(amount.value.replace(/[_,\s]/g, ""));
      act(() => api.put("/admin/v1/budgets", body), "The budget applies from the next request on.");
    } },
      field("For", scope), field("Name", name),
      field("At most", amount), field("In", measure), field("Per", window_), field("Warn at (%)", warn),
      h("div", { class: "wide actions" }, h("button", { type: "submit", class: "primary" }, "Set budget"),
        h("small", {}, "A budget with the same scope, measure and time is replaced."))));
}

/** Returns the start of a budget's window; `null` if it has none that a rate can be measured over. */
export function start(budget, now) {
  const rolling = /^(\d+)([hd])$/.exec(budget.per);
  if (rolling) return now - Number(rolling[1]) * (rolling[2] === "h" ? HOUR : DAY);
  const end = Date.parse(budget.resets_at);
  if (Number.isNaN(end)) return null;
  if (budget.per === "month") {
    const before = new Date(end);
    before.setUTCMonth(before.getUTCMonth() - 1);
    return before.getTime();
  }
  const length = { minute: HOUR / 60, hour: HOUR, day: DAY, week: 7 * DAY }[budget.per];
  return length ? end - length : null;
}

/**
 * Projects when a budget is spent, at the mean rate since the start of its window: the time, or what is
 * spent when the window ends, if that is earlier. At least a twentieth of the window must have
 * passed.
 */
export function projected(budget, now) {
  if (/^\d+[hd]$/.test(budget.per)) return { kind: "rolling" };
  const from = start(budget, now);
  const end = Date.parse(budget.resets_at);
  const [spent, left] = [Number(budget.spent), Number(budget.limit) - Number(budget.spent)];
  if (left <= 0) return { kind: "spent" };
  if (from === null) return { kind: "endless" };
  if (now - from < (end - from) / 20) return { kind: "early" };
  const rate = spent / (now - from);
  const at = rate > 0 ? now + left / rate : Infinity;
  return at < end ? { kind: "ends", at } : { kind: "lasts", spent: rate * (end - from) };
}

const WORDS = { minute: "a minute", hour: "an hour", day: "a day", week: "a week", month: "a month", total: "in total" };

function card(api, budget, now, remove) {
  const format = budget.measure === "usd" ? usd : compact;
  const isEach = budget.spent === undefined;
  const title = budget.scope === "all" ? "All requests" : budget.scope;
  const per = WORDS[budget.per] ?? `in any ${budget.per}`;
  const limit = budget.measure === "usd" ? usd(budget.limit) : `${count(budget.limit)} tokens`;
  const head = h("div", { class: "panel-head" },
    h("div", { class: "titled" }, h("h2", { class: "name" }, title), h("span", {}, limit, h("span", { class: "muted" }, ` ${per}`))),
    h("button", { type: "button", class: "small danger", onclick: () => remove(budget), "aria-label": `Remove ${budget.budget}` }, "Remove"));
  if (isEach) {
    const kind = budget.scope.split(":")[0];
    return h("section", { class: "panel" }, head,
      h("p", { class: "muted" }, `Each ${kind} has this budget of its own. `,
        h("a", { href: `#/usage?by=${kind}` }, `Usage by ${kind}`)),
      members(budget, format));
  }
  const used = Number(budget.spent) / Number(budget.limit);
  const held = Number(budget.held) / Number(budget.limit);
  const state = used >= 1 ? "bad" : budget.warn_at !== null && used >= budget.warn_at ? "warn" : "";
  const place = h("div", {});
  const from = start(budget, now);
  if (from !== null) draw(api, budget, from, now, place);
  return h("section", { class: "panel" }, head,
    h("div", { class: `meter ${state}`, role: "meter", "aria-valuemin": "0", "aria-valuemax": "100",
      "aria-valuenow": String(Math.min(100, Math.round(used * 100))), "aria-label": `Spent of ${budget.budget}` },
      h("span", { style: { width: `${Math.min(100, used * 100)}%` } }),
      h("span", { class: "held", style: { left: `${Math.min(100, used * 100)}%`, width: `${Math.min(100, held * 100)}%` } }),
      budget.warn_at !== null && h("span", { class: "mark", style: { left: `${budget.warn_at * 100}%` } })),
    h("p", { class: "spread" },
      h("span", {}, h("b", {}, format(budget.spent)), ` spent (${share(used, 1)})`,
        Number(budget.held) > 0 && `, ${format(budget.held)} held by open requests`, `, ${format(budget.left)} left`),
      h("span", { class: "muted" }, resets(budget))),
    h("p", {}, forecast(budget, now)), place);
}

/** Lists the members of a budget for each, the nearest to its limit first. */
function members(budget, format) {
  if (!budget.members?.length) return null;
  const figure = (name, of) => ({ name, of, kind: "number" });
  return table(`Members of ${budget.budget}`, [
    { name: "Name", of: (one) => one.scope.slice(one.scope.indexOf(":") + 1) },
    figure("Spent", (one) => format(one.spent)), figure("Held", (one) => format(one.held)),
    figure("Left", (one) => format(one.left)), figure("Share", (one) => share(Number(one.spent) / Number(one.limit), 1)),
  ], budget.members);
}

function resets(budget) {
  if (!budget.resets_at) return "";
  const ms = Date.parse(budget.resets_at);
  const word = /^\d+[hd]$/.test(budget.per) ? "the oldest part frees" : "resets";
  return h("span", { title: utc(ms) }, `${word} ${moment(ms)}`);
}

function forecast(budget, now) {
  const found = projected(budget, now);
  const amount = budget.measure === "usd" ? usd : compact;
  if (found.kind === "spent") return h("span", { class: "bad" }, "The budget is spent: requests get 429 insufficient_quota until it resets.");
  if (found.kind === "rolling") return h("span", { class: "muted" }, "A rolling time has no end: spending leaves it as it grows older.");
  if (found.kind === "endless") return h("span", { class: "muted" }, "No projection: the budget has no window.");
  if (found.kind === "early") return h("span", { class: "muted" }, "No projection yet: too little of the time has passed.");
  if (found.kind === "lasts") return h("span", { class: "muted" }, `At the mean rate so far it lasts: about ${amount(found.spent)} when it resets.`);
  return h("span", { class: "warn", title: utc(found.at) },
    `At the mean rate so far it is spent ${moment(found.at)}, in ${duration(found.at - now)}.`);
}

/** Draws what is left of the budget in its window, and what is left at the mean rate until it ends. */
async function draw(api, budget, from, now, place) {
  const [kind, name] = budget.scope === "all" ? [null, null] : split(budget.scope);
  const resets = Date.parse(budget.resets_at);
  const isRolling = /^\d+[hd]$/.test(budget.per);
  const end = isRolling || Number.isNaN(resets) ? now : resets;
  const every = end - from > 8 * DAY ? DAY : HOUR;
  const first = from - (from % every);
  try {
    const word = every === DAY ? "day" : "hour";
    const { data } = await api.get(usagePath({ since: first, until: now, every: word, ...(kind && { [kind]: name }) }));
    const starts = slots(first, end, every);
    if (starts.length < 3) return;
    const isUsd = budget.measure === "usd";
    const bySlot = new Map(data.map((row) => [row.start_ms, isUsd ? Number(row.cost_usd) : row.prompt_tokens + row.completion_tokens]));
    const limit = Number(budget.limit);
    let left = limit;
    // Each point is the rest at the end of its stretch; those to come are not known.
    const values = starts.map((at) => (at > now ? null : (left -= bySlot.get(at) ?? 0)));
    const rate = Number(budget.spent) / Math.max(1, now - from);
    const ahead = starts.map((at) => (at + every < now ? null : Math.max(0, limit - rate * (at + every - from))));
    const format = isUsd ? usd : compact;
    const series = [{ label: "Left", values, colour: "--series-1", fill: true, summary: format(budget.left) }];
    if (!isRolling && ahead.filter((value) => value !== null).length > 1) {
      series.push({ label: "at the mean rate", values: ahead, colour: "--series-4", dash: [5, 4] });
    }
    put(place, chart({ label: `Left of ${budget.budget}`, starts, every, format, axis: isUsd ? shortUsd : compact, height: 130, top: limit, series }));
  } catch (error) {
    if (error.status !== 401) put(place, notice("error", error.message));
  }
}

/** Splits a scope into its kind and name; names may have colons. */
function split(scope) {
  const at = scope.indexOf(":");
  return [scope.slice(0, at), scope.slice(at + 1)];
}
