// Charts over time, drawn by uPlot in the colours of the theme. Each has a text alternative.

import { h, put } from "./dom.js";

const { uPlot } = globalThis;
const dayLabel = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", timeZone: "UTC" });
const localDay = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const localHour = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
const hourLabel = new Intl.DateTimeFormat(undefined, {
  weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit",
});

/** Returns the value of a colour of the theme. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const translucent = (name, share) => `color-mix(in srgb, ${colour(name)} ${share}%, transparent)`;

/** Returns the starts of all stretches from `from` to `until`, aligned as weir does. */
export function slots(from, until, every) {
  const starts = [];
  for (let start = from - (from % every); start < until; start += every) starts.push(start);
  return starts;
}

/** Puts rows by their `start_ms` into the slots; `of` returns a row's value, `none` stands for no row. */
export function fill(starts, rows, of, none = 0) {
  const byStart = new Map(rows.map((row) => [row.start_ms, of(row)]));
  return starts.map((start) => byStart.get(start) ?? none);
}

/**
 * Creates a chart. `series` are `{label, values, colour}`, each with a value per start; `format`
 * writes a value, `axis` one of the axis. `kind` is `line`, `bars` or `stack`; `summary` is what
 * the legend shows for a series if the pointer is elsewhere. `top` is a value that stays in view.
 */
export function chart({ label, starts, every, series, format, axis = format, kind = "line", height = 170, top }) {
  const plot = h("div", { class: "chart", role: "img" });
  const legend = h("div", { class: "legend" });
  const figure = h("figure", {}, legend, plot);
  const isDaily = every >= 86_400_000;
  const when = (ms) => (isDaily ? `${dayLabel.format(ms)} UTC` : hourLabel.format(ms));
  const known = series.map(({ label: name, summary }) => (summary ? `${name} ${summary}` : name));
  plot.setAttribute("aria-label", `${label}, ${when(starts[0])} to ${when(starts.at(-1))}: ${known.join(", ")}`);

  const marks = series.map((one) => {
    const value = h("b", {}, one.summary ?? "");
    return { value, item: h("span", {}, h("i", { style: { background: `var(${one.colour})` } }), one.label, " ", value) };
  });
  const time = h("span", { class: "muted" });
  put(legend, marks.map(({ item }) => item), time);
  const show = (index) => {
    series.forEach((one, place) => {
      const isNone = index === null || index === undefined || one.values[index] === null;
      const value = isNone ? one.summary : format(one.values[index]);
      marks[place].value.textContent = value ?? "";
    });
    time.textContent = index === null || index === undefined ? "" : when(starts[index]);
  };

  const seconds = starts.map((start) => start / 1000);
  // A stack is drawn from its top: each sum covers the part of those below it.
  const drawn = kind === "stack" ? stacked(series) : series.map((one) => one.values);
  const order = series.map((_, place) => place);
  if (kind === "stack") order.reverse();
  const data = [seconds, ...order.map((place) => drawn[place])];

  let drawnPlot = null;
  const draw = () => {
    drawnPlot?.destroy();
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const grid = { stroke: colour("--line"), width: 1 };
    const options = {
      width: Math.max(plot.clientWidth, 120), height,
      padding: [10, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: kind === "line" }, drag: { x: false, y: false } },
      hooks: { setCursor: [(own) => show(own.cursor.idx)] },
      scales: {
        x: { time: true, range: [seconds[0], seconds.at(-1) + every / 1000] },
        y: { range: (_, least, most) => range(least, Math.max(most ?? 0, top ?? 0)) },
      },
      tzDate: isDaily ? (stamp) => uPlot.tzDate(new Date(stamp * 1000), "Etc/UTC") : undefined,
      axes: [
        { stroke: colour("--muted"), font, grid: { show: false }, ticks: { show: false }, size: 20, gap: 4, space: 64,
          values: ticks(isDaily, starts) },
        { stroke: colour("--muted"), font, grid, ticks: { show: false }, size: room, gap: 6, space: 32,
          values: (_, values) => values.map((value) => axis(value)) },
      ],
      series: [{}, ...order.map((place) => line(series[place], kind, starts.length))],
    };
    if (!options.tzDate) delete options.tzDate;
    drawnPlot = new uPlot(options, data, plot);
    // Its canvas would otherwise be a second image without a name.
    drawnPlot.root.setAttribute("aria-hidden", "true");
  };
  show(null);

  // The plot is drawn once it has a width, again with another width or theme, and let go with its page.
  let width = 0;
  const observer = new ResizeObserver(() => {
    if (!plot.isConnected) return end();
    if (plot.clientWidth === width || plot.clientWidth === 0) return;
    width = plot.clientWidth;
    if (drawnPlot) drawnPlot.setSize({ width, height });
    else draw();
  });
  const retheme = () => (plot.isConnected ? draw() : end());
  const end = () => {
    observer.disconnect();
    window.removeEventListener("weir-theme", retheme);
    drawnPlot?.destroy();
    drawnPlot = null;
  };
  observer.observe(plot);
  window.addEventListener("weir-theme", retheme);
  return figure;
}

function stacked(series) {
  const sums = [];
  for (const one of series) {
    const below = sums.at(-1);
    sums.push(one.values.map((value, index) => value + (below ? below[index] : 0)));
  }
  return sums;
}

function line(one, kind, count) {
  const base = { label: one.label, stroke: colour(one.colour), points: { show: count === 1 } };
  if (kind === "line") {
    return { ...base, width: 1.75, spanGaps: true, dash: one.dash, fill: one.fill ? translucent(one.colour, 12) : undefined,
      points: { show: one.values.filter((value) => value !== null).length < 3, size: 5 } };
  }
  return { ...base, width: 0, fill: colour(one.colour), paths: uPlot.paths.bars({ size: [0.78, 40], align: 1 }) };
}

/** Returns the width that the labels of the axis of values need. */
function room(_, labels) {
  const letters = Math.max(...(labels ?? []).map((label) => label.length), 4);
  return letters * 7 + 12;
}

/** Keeps zero in view, and shows something if all values are zero. */
function range(least, most) {
  const low = Math.min(least ?? 0, 0);
  const high = Math.max(most ?? 0, 0);
  if (low === 0 && high === 0) return [0, 1];
  const room = (high - low) * 0.06;
  return [low < 0 ? low - room : 0, high > 0 ? high + room : 0];
}

/** Labels of the axis of time: days, and hours within two days. */
function ticks(isDaily, starts) {
  const last = starts.at(-1);
  const label = isDaily ? dayLabel : last - starts[0] > 2 * 86_400_000 ? localDay : localHour;
  return (_, stamps) => {
    // A label is written once, and none for the end of the last stretch, which would be cut off.
    const labels = stamps.map((stamp) => (stamp * 1000 > last ? "" : label.format(stamp * 1000)));
    return labels.map((text, index) => (text === labels[index - 1] ? "" : text));
  };
}
