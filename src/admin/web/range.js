// Time ranges that pages offer, and the state of a page in its address.

import { segmented } from "./dom.js";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

/** Ranges by name, with label and length of a stretch. */
const RANGES = {
  today: ["Today", HOUR],
  "7d": ["7 days", 4 * HOUR],
  "30d": ["30 days", DAY],
};

/** The word of a stretch in queries, and on pages. */
const WORDS = {
  [HOUR]: { word: "hour", per: "per hour" },
  [4 * HOUR]: { word: "4h", per: "per 4 hours" },
  [DAY]: { word: "day", per: "per day" },
};

/** Returns a range: `{name, from, until, every, word, per}`. Days are those of UTC. */
export function range(name, now = Date.now()) {
  const known = RANGES[name] ? name : "today";
  const [, every] = RANGES[known];
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const from = { today: midnight - (midnight % HOUR), "7d": now - (now % (4 * HOUR)) - 7 * DAY + 4 * HOUR, "30d": now - (now % DAY) - 29 * DAY }[known];
  const until = now - (now % every) + every;
  return { name: known, from, until, every, ...WORDS[every] };
}

/** Creates the buttons that choose a range. */
export function rangeButtons(current, onchange) {
  const choices = Object.entries(RANGES).map(([name, [label]]) => [name, label]);
  return segmented("Time", choices, current, onchange);
}

/** Writes parameters into the page's address, without a new entry in the history. */
export function remember(path, params) {
  const query = new URLSearchParams(params).toString();
  history.replaceState(null, "", `#/${path}${query ? `?${query}` : ""}`);
}

/** Returns the path of a usage query. */
export function usagePath(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `/admin/v1/usage?${new URLSearchParams(given)}`;
}
