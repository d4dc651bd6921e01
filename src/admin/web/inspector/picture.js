// Picture of a conversation before and after: a bar for each message, as high as its tokens, and bands
// that lead from each message to the place where it is sent. Draws on one canvas as large as the window
// onto it, so that thousands of messages scroll smoothly.

import { h } from "../dom.js";
import { compact, count, share } from "../format.js";
import { FATES, fillBar, isSent, palette } from "./fates.js";

const HEAD = 26;
const FONT = "12px system-ui, sans-serif";
/** Time in which bars move to their places of another turn. */
const MOVE_MS = 220;

/**
 * Creates the picture. `onopen` gets `{message}` or `{side, note}` of the bar that the reader opens, and
 * whether by a key.
 */
export function picture({ onopen }) {
  const canvas = h("canvas", {
    class: "inspector-canvas", tabindex: "0", role: "application",
    "aria-label": "Messages before and after. Arrow keys go from message to message, Enter opens one.",
  });
  const spacer = h("div", { class: "inspector-spacer" });
  const scroller = h("div", { class: "inspector-scroller" }, canvas, spacer);
  const hint = h("div", { class: "inspector-hint", hidden: true });
  const live = h("p", { class: "unseen", "aria-live": "polite" });
  const box = h("div", { class: "inspector-picture" }, scroller, hint, live);
  let data = null;
  let bars = [];
  let bands = [];
  let zoom = 1;
  let only = null;
  let selected = null;
  let hovered = null;
  let frame = 0;
  let total = 0;
  let moved = 0;
  let colours = null;

  const width = () => scroller.clientWidth;
  const height = () => scroller.clientHeight;

  /** Columns from the left: one policy stands right of the received messages, two on both sides. */
  function columns() {
    const all = width();
    const sides = data.sides.length;
    if (sides === 1) {
      const own = Math.min(all * 0.4, 460);
      return { received: [0, own], sides: [[all - own, own]] };
    }
    const own = all * 0.27;
    return { received: [(all - own) / 2, own], sides: [[0, own], [all - own, own]] };
  }

  const key = (bar) => `${bar.side ?? "r"} ${bar.overhead ? "o" : bar.note === undefined ? bar.message : `n${bar.note}`}`;

  /** Lays out all bars; they move from their places before if `moves`. */
  function layOut(moves = false) {
    if (!data) return;
    const before = new Map(bars.map((bar) => [key(bar), bar]));
    const place = columns();
    const { least, gap, perToken } = scale();
    const high = (tokens) => Math.max(least, tokens * perToken);
    const lay = (items, [x, own]) => {
      let y = HEAD;
      return items.map((item) => {
        const bar = { ...item, x, y, width: own, height: high(item.tokens) };
        y += bar.height + gap;
        return bar;
      });
    };
    const received = lay(data.received, place.received);
    bars = received;
    bands = [];
    data.sides.forEach((side, index) => {
      const sent = lay(side.items, place.sides[index]);
      bars = bars.concat(sent);
      bands = bands.concat(join(received, sent, side, index));
    });
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches || before.size === 0;
    for (const bar of bars) {
      const own = before.get(key(bar));
      [bar.y1, bar.height1] = [bar.y, bar.height];
      [bar.y0, bar.height0] = own ? [own.y, own.height] : [bar.y, 0];
    }
    moved = moves && !isCalm ? performance.now() : 0;
    total = Math.max(...bars.map((bar) => bar.y + bar.height), HEAD) + 8;
    spacer.style.setProperty("height", `${Math.max(total - height(), 0)}px`);
    draw();
  }

  /**
   * Finds the height of a token at which the longest column fills the window, times the zoom. Bars have a
   * least height to be seen; at most half of the column goes to it, so that the rest shows proportions.
   */
  function scale() {
    const items = [data.received, ...data.sides.map((side) => side.items)];
    const most = Math.max(...items.map((own) => own.length));
    const gap = most > 200 ? 0 : 1;
    const least = most > 400 ? 1 : most > 120 ? 2 : 4;
    const room = Math.max((Math.max(height(), 240) - HEAD - 8) * zoom, 2 * most * (least + gap));
    const high = (own, perToken) => own.reduce((sum, item) => sum + Math.max(least, item.tokens * perToken) + gap, 0);
    let [low, top] = [0, 4];
    for (let step = 0; step < 40; step += 1) {
      const middle = (low + top) / 2;
      if (items.every((own) => high(own, middle) <= room)) low = middle;
      else top = middle;
    }
    return { least, gap, perToken: low };
  }

  /** Leads each received message to its place in a side, or to nowhere. */
  function join(received, sent, side, index) {
    const places = new Map(sent.filter((bar) => bar.message !== undefined).map((bar) => [bar.message, bar]));
    const notes = new Map(sent.filter((bar) => bar.note !== undefined).map((bar) => [bar.note, bar]));
    const covered = new Map();
    for (const bar of received) {
      const fate = side.fates[bar.message];
      if (fate === "note" || fate === "summarised") {
        const note = side.notes[bar.message];
        covered.set(note, (covered.get(note) ?? 0) + bar.height);
      }
    }
    const used = new Map();
    return received.map((bar) => {
      const band = { from: bar, side: index, fate: side.fates[bar.message] ?? "overhead", to: null, at: 0, part: 1 };
      if (bar.message === undefined) band.to = sent.find((own) => own.overhead) ?? null;
      else if (isSent(band.fate)) band.to = places.get(bar.message) ?? null;
      else if (band.fate !== "gone") {
        const note = side.notes[bar.message];
        band.to = notes.get(note) ?? null;
        // Messages in a note share its bar.
        band.part = bar.height / covered.get(note);
        band.at = used.get(note) ?? 0;
        used.set(note, band.at + band.part);
      }
      return band;
    });
  }

  function draw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(paint);
  }

  function paint() {
    if (!data || !canvas.isConnected) return;
    const passed = moved ? Math.min((performance.now() - moved) / MOVE_MS, 1) : 1;
    const ease = 1 - (1 - passed) ** 3;
    for (const bar of bars) {
      bar.y = bar.y0 + (bar.y1 - bar.y0) * ease;
      bar.height = bar.height0 + (bar.height1 - bar.height0) * ease;
    }
    if (passed < 1) draw();
    else moved = 0;
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [width(), height()];
    const context = canvas.getContext("2d");
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.style.setProperty("width", `${wide}px`);
      canvas.style.setProperty("height", `${high}px`);
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, wide, high);
    const top = scroller.scrollTop;
    colours ??= { ...palette(), get overhead() { return this["strong-line"]; } };
    context.save();
    context.translate(0, -top);
    const isSeen = (from, to) => to >= top && from <= top + high;
    for (const band of bands) {
      const end = band.to ?? band.from;
      const from = Math.min(band.from.y, end.y);
      const to = Math.max(band.from.y + band.from.height, end.y + end.height);
      if (isSeen(from, to)) drawBand(context, band);
    }
    for (const bar of bars) {
      if (isSeen(bar.y, bar.y + bar.height)) drawBar(context, bar);
    }
    data.sides.forEach((side, index) => drawRest(context, side, index));
    context.restore();
    drawHeads(context);
  }

  /** Says below a side how much of the prompt is not sent. */
  function drawRest(context, side, index) {
    const own = bars.filter((bar) => bar.side === index);
    const last = own.at(-1);
    if (!last || moved || side.sentTokens >= data.receivedTokens) return;
    const end = Math.max(...bars.filter((bar) => bar.side === undefined).map((bar) => bar.y + bar.height));
    const from = last.y + last.height + 6;
    if (end - from < 50) return;
    context.strokeStyle = colours["strong-line"];
    context.lineWidth = 1;
    context.setLineDash([2, 4]);
    context.strokeRect(last.x + 0.5, from + 0.5, last.width - 1, end - from - 1);
    context.setLineDash([]);
    context.textAlign = "center";
    context.textBaseline = "middle";
    const [x, y] = [last.x + last.width / 2, from + (end - from) / 2];
    context.fillStyle = colours.fg;
    context.font = "600 15px system-ui, sans-serif";
    context.fillText(share(data.receivedTokens - side.sentTokens, data.receivedTokens), x, y - 9);
    context.fillStyle = colours.muted;
    context.font = FONT;
    context.fillText(last.width > 180 ? "of the tokens are not sent" : "not sent", x, y + 9);
  }

  const isDim = (fate) => only !== null && fate !== only;
  const isMarked = (bar) => bar && (same(bar, selected) || same(bar, hovered));

  function drawBand(context, band) {
    const { from, to } = band;
    const marked = [selected, hovered].some((own) => own?.message !== undefined && own.message === from.message);
    context.globalAlpha = isDim(band.fate) ? 0.04 : marked ? 0.6 : 0.2;
    context.fillStyle = colours[band.fate] ?? colours.muted;
    // The side may stand left of the received messages.
    const target = to ?? bars.find((bar) => bar.side === band.side);
    const isRight = !target || target.x > from.x;
    const x0 = isRight ? from.x + from.width : from.x;
    context.beginPath();
    if (to) {
      const x1 = isRight ? to.x : to.x + to.width;
      const middle = (x0 + x1) / 2;
      const [y, end] = [to.y + band.at * to.height, to.y + (band.at + band.part) * to.height];
      context.moveTo(x0, from.y);
      context.bezierCurveTo(middle, from.y, middle, y, x1, y);
      context.lineTo(x1, end);
      context.bezierCurveTo(middle, end, middle, from.y + from.height, x0, from.y + from.height);
    } else {
      // A message that nothing is left of ends on its way.
      const x1 = x0 + (isRight ? 1 : -1) * Math.min(46, width() * 0.08);
      const centre = from.y + from.height / 2;
      context.globalAlpha *= 0.9;
      context.moveTo(x0, from.y);
      context.quadraticCurveTo(x0, centre, x1, centre);
      context.quadraticCurveTo(x0, centre, x0, from.y + from.height);
    }
    context.closePath();
    context.fill();
    context.globalAlpha = 1;
  }

  function drawBar(context, bar) {
    context.globalAlpha = isDim(bar.fate) ? 0.25 : 1;
    fillBar(context, bar.fate, bar, colours);
    if (isMarked(bar)) {
      context.strokeStyle = colours.fg;
      context.lineWidth = 2;
      context.strokeRect(bar.x + 1, bar.y + 1, bar.width - 2, Math.max(bar.height - 2, 1));
    }
    if (bar.height >= 13) drawLabel(context, bar);
    context.globalAlpha = 1;
  }

  /** Writes as much of a bar's label, size and words as there is room for. */
  function drawLabel(context, bar) {
    const letter = FATES[bar.fate]?.[2];
    const size = compact(bar.tokens);
    const sizes = [...(letter ? [`${size}  ${letter}`] : []), size];
    const choices = [bar.label, bar.short].flatMap((label) => sizes.map((own) => [label, own]));
    const room = bar.width - 18;
    const [label, right, used] = fitting(context, [...choices, [bar.short, ""]], room);
    context.save();
    context.beginPath();
    context.rect(bar.x, bar.y, bar.width - 4, bar.height);
    context.clip();
    context.textBaseline = "middle";
    const y = bar.y + Math.min(bar.height / 2, 12);
    context.fillStyle = colours.fg;
    context.textAlign = "left";
    context.font = `600 ${FONT}`;
    context.fillText(label, bar.x + 12, y);
    context.font = FONT;
    context.textAlign = "right";
    context.fillText(right, bar.x + bar.width - 6, y);
    const rest = room - used - 16;
    if (rest > 24) {
      const from = bar.x + 12 + used - context.measureText(right).width;
      context.beginPath();
      context.rect(from, bar.y, rest + 8, bar.height);
      context.clip();
      context.textAlign = "left";
      context.fillStyle = colours.muted;
      context.fillText(bar.words, from + 4, y);
    }
    context.restore();
  }

  /** Returns the first of some pairs of a bold and a plain text that fits, with its width. */
  function fitting(context, pairs, room) {
    let pair = null;
    for (const [left, right] of pairs) {
      context.font = `600 ${FONT}`;
      const bold = context.measureText(left).width;
      context.font = FONT;
      const used = bold + context.measureText(right).width + (right ? 8 : 0);
      pair = [left, right, used];
      if (used <= room) break;
    }
    return pair;
  }

  /** Names the columns over the bars, which scroll below. */
  function drawHeads(context) {
    const place = columns();
    const heads = [[place.received, ["Received"], data.receivedTokens],
      ...data.sides.map((side, index) => [place.sides[index], [`Sent, ${side.policy}`, side.policy], side.sentTokens])];
    context.fillStyle = colours.surface;
    context.fillRect(0, 0, width(), HEAD - 3);
    context.textBaseline = "middle";
    for (const [[x, own], titles, tokens] of heads) {
      const sizes = [`${count(tokens)} tokens`, compact(tokens), ""];
      const [title, size] = fitting(context, titles.flatMap((one) => sizes.map((two) => [one, two])), own);
      context.save();
      context.beginPath();
      context.rect(x, 0, own, HEAD);
      context.clip();
      context.font = `600 ${FONT}`;
      context.textAlign = "left";
      context.fillStyle = colours.fg;
      context.fillText(title, x, 10);
      context.font = FONT;
      context.textAlign = "right";
      context.fillStyle = colours.muted;
      context.fillText(size, x + own, 10);
      context.restore();
    }
  }

  const same = (left, right) => Boolean(left && right) && left.message === right.message &&
    left.note === right.note && (left.note === undefined || left.side === right.side);

  function barAt(event) {
    const own = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - own.left, event.clientY - own.top + scroller.scrollTop];
    if (y - scroller.scrollTop < HEAD - 3) return null;
    return bars.find((bar) => x >= bar.x && x <= bar.x + bar.width && y >= bar.y && y <= bar.y + bar.height + 1) ?? null;
  }

  function showHint(bar, event) {
    hint.hidden = !bar;
    if (!bar) return;
    hint.textContent = bar.hint;
    const own = box.getBoundingClientRect();
    const [x, y] = [event.clientX - own.left, event.clientY - own.top];
    const isRight = x > own.width / 2;
    hint.style.setProperty("left", isRight ? "auto" : `${x + 14}px`);
    hint.style.setProperty("right", isRight ? `${own.width - x + 14}px` : "auto");
    hint.style.setProperty("top", `${Math.min(y + 14, own.height - 70)}px`);
  }

  function open(bar, isByKey = false) {
    if (!bar || bar.overhead) return;
    selected = bar;
    draw();
    onopen(bar.note === undefined ? { message: bar.message } : { side: bar.side, note: bar.note }, isByKey);
  }

  function step(by) {
    const own = bars.filter((bar) => bar.side === undefined && bar.message !== undefined);
    if (own.length === 0) return;
    const at = own.findIndex((bar) => bar.message === selected?.message);
    const next = at < 0 ? (by > 0 ? 0 : own.length - 1) : Math.min(Math.max(at + by, 0), own.length - 1);
    selected = own[next];
    reveal(selected);
    live.textContent = selected.hint;
    draw();
  }

  function reveal(bar) {
    const [top, high] = [scroller.scrollTop, height()];
    if (bar.y < top + HEAD) scroller.scrollTop = bar.y - HEAD - 8;
    else if (bar.y + bar.height > top + high) scroller.scrollTop = Math.min(bar.y - HEAD - 8, bar.y + bar.height - high + 8);
  }

  canvas.addEventListener("pointermove", (event) => {
    const bar = barAt(event);
    canvas.style.setProperty("cursor", bar && !bar.overhead ? "pointer" : "default");
    showHint(bar, event);
    if (!same(bar, hovered)) {
      hovered = bar;
      draw();
    }
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    showHint(null);
    draw();
  });
  canvas.addEventListener("click", (event) => open(barAt(event)));
  const keys = {
    ArrowDown: () => step(1), ArrowUp: () => step(-1), PageDown: () => step(20), PageUp: () => step(-20),
    Home: () => step(-Infinity), End: () => step(Infinity), Enter: () => open(selected, true), " ": () => open(selected, true),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  scroller.addEventListener("scroll", draw);
  scroller.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    api.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2);
  }, { passive: false });
  const observer = new ResizeObserver(() => layOut());
  const recolour = () => {
    colours = null;
    draw();
  };
  observer.observe(scroller);
  window.addEventListener("weir-theme", recolour);

  const api = {
    box,
    /** Shows a turn: received items, and items, fates and notes of each side. */
    set(own) {
      data = own;
      layOut(true);
    },
    /** Marks a message or a note as opened. */
    select(own) {
      selected = own;
      draw();
    },
    /** Shows one fate alone; `null` shows all. */
    filter(fate) {
      only = fate;
      draw();
    },
    zoom(by) {
      const before = zoom;
      zoom = by === 0 ? 1 : Math.min(Math.max(zoom * by, 1), 40);
      if (zoom === before) return;
      const centre = scroller.scrollTop + height() / 2;
      layOut();
      scroller.scrollTop = (centre / before) * zoom - height() / 2;
    },
    focus: () => canvas.focus(),
    end() {
      cancelAnimationFrame(frame);
      observer.disconnect();
      window.removeEventListener("weir-theme", recolour);
    },
  };
  return api;
}
