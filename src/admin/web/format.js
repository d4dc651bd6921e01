// Formats of numbers, money, shares, durations and times, by the browser's locale.

const whole = new Intl.NumberFormat();
const compactNumber = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });
const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });
const shortTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const onlyDay = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const fullTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Shown for a figure that is not known. */
export const NONE = "–";

const isNone = (value) => value === null || value === undefined || Number.isNaN(Number(value));

/** `12,345` */
export function count(value) {
  return isNone(value) ? NONE : whole.format(Number(value));
}

/** `12.3K` */
export function compact(value) {
  if (isNone(value)) return NONE;
  return Math.abs(value) < 10_000 ? whole.format(Number(value)) : compactNumber.format(Number(value));
}

/** Dollars: cents from a dollar on, more digits below, so that small amounts stay visible. */
export function usd(value) {
  if (isNone(value)) return NONE;
  const amount = Number(value);
  const size = Math.abs(amount);
  const digits = size >= 1 || size === 0 ? { minimumFractionDigits: 2, maximumFractionDigits: 2 }
    : { minimumSignificantDigits: 2, maximumSignificantDigits: 2 };
  const text = new Intl.NumberFormat(undefined, digits).format(size);
  return `${amount < 0 ? "−" : ""}$${text}`;
}

/** Dollars for an axis: `$1.2K`. */
export function shortUsd(value) {
  const size = Math.abs(value);
  const digits = size === 0 || size >= 10 ? { maximumFractionDigits: 0 }
    : size >= 0.1 ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : { maximumSignificantDigits: 3 };
  const text = size >= 1000 ? compactNumber.format(size) : new Intl.NumberFormat(undefined, digits).format(size);
  return `${value < 0 ? "−" : ""}$${text}`;
}

/** `12.3 %` of a whole; none if the whole is zero. */
export function share(part, total) {
  return total > 0 ? percent.format(part / total) : NONE;
}

/** `340 ms`, `1.2 s`, `3 min` */
export function duration(ms) {
  if (isNone(ms)) return NONE;
  const value = Number(ms);
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 9950) return `${(value / 1000).toFixed(1)} s`;
  if (value < 90_000) return `${Math.round(value / 1000)} s`;
  if (value < 5_400_000) return `${Math.round(value / 60_000)} min`;
  if (value < 172_800_000) return `${Math.round(value / 3_600_000)} h`;
  return `${Math.round(value / 86_400_000)} days`;
}

/** Returns the time in UTC, for hints. */
export function utc(ms) {
  return `${new Date(Number(ms)).toISOString().replace("T", " ").replace(/\.\d+Z$/, "")} UTC`;
}

/** `14:02:55` in local time. */
export function clock(ms) {
  return shortTime.format(new Date(Number(ms)));
}

/** Date in local time. */
export function day(ms) {
  return isNone(ms) ? NONE : onlyDay.format(new Date(Number(ms)));
}

/** Date and time in local time. */
export function moment(ms) {
  return isNone(ms) ? NONE : fullTime.format(new Date(Number(ms)));
}
