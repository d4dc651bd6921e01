// Timeline of a conversation's requests: tokens received and sent, the limit and the marks, and each
// compaction, over a slider. Draws; decides nothing.

import { h, put } from "../dom.js";
import { compact, count, usd } from "../format.js";
import { palette } from "./fates.js";

const HEIGHT = 190;
const PAD = { left: 54, right: 14, top: 12, bottom: 22 };

/** Creates the timeline; `onturn` gets the number of the turn that the reader moves to. */
export function timeline(onturn) {
  const canvas = h("canvas", { class: "inspector-chart", "aria-hidden": "true" });
  const slider = h("input", {
    type: "range", min: "1", step: "1", class: "inspector-slider", "aria-label": "Turn",
    oninput: () => {
      stop();
      move(Number(slider.value));
    },
  });
  const said = h("p", { class: "inspector-said", "aria-live": "polite" });
  const legend = h("div", { class: "legend" });
  const jump = (direction) => () => {
    const own = state.policies[0].turns.filter((row) => row.steps !== null).map((row) => row.turn);
    stop();
    const next = direction > 0 ? own.find((turn) => turn > state.turn) : own.findLast((turn) => turn < state.turn);
    if (next) move(next);
  };
  const back = h("button", { type: "button", class: "small", onclick: jump(-1) }, "◀ compaction");
  const on = h("button", { type: "button", class: "small", onclick: jump(1) }, "compaction ▶");
  let playing = 0;
  const play = h("button", { type: "button", class: "small", onclick: () => (playing ? stop() : begin()) }, "▶ Play");
  function begin() {
    if (state.turn >= state.policies[0].turns.length) move(1);
    playing = setInterval(() => {
      if (state.turn < state.policies[0].turns.length) move(state.turn + 1);
      else stop();
    }, 450);
    play.textContent = "❚❚ Pause";
  }
  function stop() {
    clearInterval(playing);
    playing = 0;
    play.textContent = "▶ Play";
  }
  const box = h("section", { class: "panel", "aria-label": "Timeline" },
    h("div", { class: "panel-head" }, h("h2", {}, "Turn by turn"), legend),
    h("div", { class: "inspector-plot" }, canvas, slider),
    h("div", { class: "inspector-turns" }, said, play, back, on));
  let state = null;
  let hovered = null;

  function move(turn) {
    if (!state || turn === state.turn) return;
    state.turn = turn;
    slider.value = String(turn);
    show();
    onturn(turn);
  }

  function place(turn, width) {
    const turns = state.policies[0].turns.length;
    const room = width - PAD.left - PAD.right;
    return PAD.left + (turns > 1 ? ((turn - 1) / (turns - 1)) * room : room / 2);
  }

  function draw() {
    if (!state || !canvas.isConnected) return;
    const width = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = HEIGHT * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const colours = palette();
    const rows = state.policies[0].turns;
    const most = Math.max(...rows.map((row) => row.received_tokens),
      ...state.policies.flatMap((own) => own.turns.map((row) => Math.max(row.sent_tokens, row.trigger_tokens))));
    const room = HEIGHT - PAD.top - PAD.bottom;
    const y = (tokens) => PAD.top + room - (tokens / most) * room;
    const x = (turn) => place(turn, width);
    const line = (own, of) => {
      context.beginPath();
      own.forEach((row, index) => context[index ? "lineTo" : "moveTo"](x(row.turn), y(of(row))));
      if (own.length === 1) context.lineTo(x(1) + 3, y(of(own[0])));
    };
    const area = (own, of, colour, alpha) => {
      line(own, of);
      context.lineTo(x(own.length), y(0));
      context.lineTo(x(1), y(0));
      context.closePath();
      context.globalAlpha = alpha;
      context.fillStyle = colour;
      context.fill();
      context.globalAlpha = 1;
    };
    const stroke = (colour, lineWidth, dash = []) => {
      context.setLineDash(dash);
      context.lineWidth = lineWidth;
      context.strokeStyle = colour;
      context.stroke();
      context.setLineDash([]);
    };
    axis(context, { colours, most, y, width });
    area(rows, (row) => row.received_tokens, colours.muted, 0.14);
    line(rows, (row) => row.received_tokens);
    stroke(colours.muted, 1.5);
    area(rows, (row) => row.sent_tokens, colours.accent, 0.28);
    state.policies.forEach((own, index) => {
      line(own.turns, (row) => row.sent_tokens);
      stroke(index ? colours["series-4"] : colours.accent, 2);
    });
    if (rows.some((row) => row.limit_tokens <= most)) {
      line(rows, (row) => Math.min(row.limit_tokens, most));
      stroke(colours.bad, 1.25, [6, 4]);
    }
    line(rows, (row) => row.trigger_tokens);
    stroke(colours["strong-line"], 1, [2, 3]);
    line(rows, (row) => row.low_tokens);
    stroke(colours["strong-line"], 1, [1, 4]);
    state.policies.forEach((own, index) => {
      context.fillStyle = index ? colours["series-4"] : colours.accent;
      for (const row of own.turns.filter((row) => row.steps !== null)) tick(context, x(row.turn), index);
    });
    cursor(context, x(state.turn), colours.fg);
    if (hovered !== null && hovered !== state.turn) cursor(context, x(hovered), colours["strong-line"]);
  }

  function axis(context, { colours, most, y, width }) {
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = niceStep(most / 3);
    for (let tokens = 0; tokens <= most; tokens += step) {
      context.fillStyle = colours.line;
      context.fillRect(PAD.left, Math.round(y(tokens)), width - PAD.left - PAD.right, 1);
      context.fillStyle = colours.muted;
      context.fillText(compact(tokens), PAD.left - 8, y(tokens));
    }
  }

  /** A triangle below the plot, one row for each policy. */
  function tick(context, x, index) {
    const top = HEIGHT - PAD.bottom + 3 + index * 9;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x - 4, top + 8);
    context.lineTo(x + 4, top + 8);
    context.fill();
  }

  function cursor(context, x, colour) {
    context.fillStyle = colour;
    context.fillRect(Math.round(x) - 0.5, PAD.top - 6, 1.5, HEIGHT - PAD.top - PAD.bottom + 8);
  }

  function show() {
    draw();
    const row = state.policies[0].turns[(hovered ?? state.turn) - 1];
    const all = state.policies[0].turns.length;
    const text = [`Turn ${row.turn} of ${all}: ${count(row.received_tokens)} tokens received, ` +
      (row.is_refused ? "refused, since the parts that must stay exceed the limit" : `${count(row.sent_tokens)} sent`)];
    if (row.steps !== null) {
      text.push(`compaction (${row.steps}) reads ${count(row.rewritten_tokens)} tokens again` +
        (row.rewrite_usd === null ? "" : `, which costs ${usd(row.rewrite_usd)}`));
    }
    put(said, text.join("; "));
    slider.setAttribute("aria-valuetext", text.join("; "));
    const compactions = state.policies[0].turns.filter((own) => own.steps !== null);
    back.disabled = !compactions.some((own) => own.turn < state.turn);
    on.disabled = !compactions.some((own) => own.turn > state.turn);
  }

  const turnAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const part = (event.clientX - box.left - PAD.left) / Math.max(box.width - PAD.left - PAD.right, 1);
    const turns = state.policies[0].turns.length;
    return Math.min(Math.max(Math.round(part * (turns - 1)) + 1, 1), turns);
  };
  let isDragging = false;
  canvas.addEventListener("pointerdown", (event) => {
    isDragging = true;
    stop();
    canvas.setPointerCapture(event.pointerId);
    move(turnAt(event));
  });
  canvas.addEventListener("pointerup", () => { isDragging = false; });
  canvas.addEventListener("pointermove", (event) => {
    if (!state) return;
    if (isDragging) return move(turnAt(event));
    hovered = turnAt(event);
    show();
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    if (state) show();
  });
  const observer = new ResizeObserver(draw);
  observer.observe(canvas);
  window.addEventListener("weir-theme", draw);

  return {
    box,
    /** Shows the turns of an inspection. */
    set(inspection, turn) {
      stop();
      state = { policies: inspection.policies, turn };
      slider.max = String(inspection.turns.length);
      slider.value = String(turn);
      slider.disabled = inspection.turns.length < 2;
      play.disabled = slider.disabled;
      const key = (colour, text) => h("span", {}, h("i", { style: { background: `var(--${colour})` } }), text);
      put(legend, key("muted", "received"),
        inspection.policies.map((own, index) => key(index ? "series-4" : "accent", `sent, ${own.policy}`)),
        key("bad", "limit"), key("strong-line", "marks: compacts above, down to"), h("span", {}, "▲ compaction"));
      show();
    },
    move,
    end() {
      stop();
      observer.disconnect();
      window.removeEventListener("weir-theme", draw);
    },
  };
}

/** Rounds a step up to 1, 2 or 5 times a power of ten. */
function niceStep(step) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(step, 1)));
  return [1, 2, 5, 10].map((part) => part * unit).find((own) => own >= step);
}
