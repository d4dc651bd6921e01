// One opened message or note: its texts before and after, with the parts that are kept marked, and the
// reason for its fate under each policy.

import { h, notice, put } from "../dom.js";
import { count } from "../format.js";
import { FATES } from "./fates.js";
import { keptRanges } from "./highlight.js";

/** Makes characters visible that would turn the direction of the text behind them. */
function visible(text) {
  return text.replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (own) => `⟨U+${own.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

/** Creates the panel; `step` moves to another message, `whole` asks for the whole text. */
export function detail({ step, whole, close, openNote }) {
  const body = h("div", { class: "inspector-texts" });
  const title = h("h2", { tabindex: "-1" });
  const box = h("aside", { class: "panel inspector-detail", "aria-label": "Opened message", hidden: true },
    h("div", { class: "panel-head" }, title,
      h("div", { class: "actions" },
        h("button", { type: "button", class: "small", "aria-label": "Previous message", onclick: () => step(-1) }, "↑"),
        h("button", { type: "button", class: "small", "aria-label": "Next message", onclick: () => step(1) }, "↓"),
        h("button", { type: "button", class: "small", "aria-label": "Close", onclick: close }, "✕"))),
    body);

  const text = (name, shown, ranges) => {
    const rest = shown.is_whole ? null
      : h("p", { class: "hint" }, `The first ${count(shown.text.length)} characters of ${count(shown.bytes)} bytes. `,
        h("button", { type: "button", class: "small", onclick: whole }, "Show all"));
    return h("section", {}, h("h3", {}, name),
      h("pre", { tabindex: "0", "aria-label": name }, ranges ? marked(shown.text, ranges) : visible(shown.text)), rest);
  };

  return {
    box,
    loading() {
      box.hidden = false;
      box.setAttribute("aria-busy", "true");
    },
    failed(message) {
      box.removeAttribute("aria-busy");
      put(body, notice("error", message));
    },
    hide() {
      box.hidden = true;
    },
    /** Shows a message: its row and opened texts under each policy. */
    message(sides) {
      box.hidden = false;
      box.removeAttribute("aria-busy");
      const { row, opened } = sides[0];
      put(title, `#${row.index} ${row.role}`, row.tool && h("span", { class: "muted" }, ` ${row.tool}`));
      const kept = (own) => own.sent ?? own.excerpts;
      const after = sides.map((side) => kept(side.opened)).find(Boolean);
      const isSame = sides.every((side) => side.opened.sent?.text === side.opened.received?.text);
      const ranges = after && !isSame && opened.received ? keptRanges(opened.received.text, after.text) : null;
      put(body,
        sides.map((side) => verdict(side, sides.length > 1, openNote)),
        opened.received && text(isSame ? "Text, sent as received" : "Received", opened.received,
          isSame ? null : ranges ?? []),
        !isSame && sides.map((side) => {
          const own = kept(side.opened);
          const name = side.opened.sent ? "Sent" : `Quoted in note ${side.opened.note}`;
          return own && text(sides.length > 1 ? `${name}, ${side.policy}` : name, own);
        }));
    },
    /** Shows a note of a policy's plan. */
    note(policy, row, opened) {
      box.hidden = false;
      box.removeAttribute("aria-busy");
      put(title, `Note ${row.number}`, h("span", { class: "muted" }, ` ${policy}`));
      const about = row.left_out_messages === 0 ? "Earlier messages that bear on the question, for this request alone."
        : `Written in compaction ${row.cut}, for ${count(row.left_out_messages)} messages that are not sent. ` +
          `It stands ${row.place.replace("what it says", `the text of message ${row.message}`)
            .replace("a message after it", `after message ${row.message}`)
            .replace("a message before it", `before message ${row.message}`)}.`;
      put(body, h("p", {}, about), h("p", { class: "muted" }, `${count(row.sent_tokens)} tokens`),
        opened.excerpts ? text("Sent", opened.excerpts) : notice("error", "This note is not in the plan."));
    },
    focus: () => title.focus(),
    /** Brings the panel into view where it stands below the messages. */
    reveal() {
      if (matchMedia("(max-width: 1100px)").matches) box.scrollIntoView({ block: "nearest" });
    },
  };
}

/** Shows the fate of a message, and the reason. */
function verdict({ policy, row, fate, opened }, isOne, openNote) {
  const [label, meaning, letter] = FATES[fate];
  const note = opened.note ?? row.why.note;
  return h("div", { class: "inspector-verdict" },
    h("span", { class: `fate ${fate}` }, h("b", { "aria-hidden": "true" }, letter), label),
    isOne && h("span", { class: "tag" }, policy),
    h("span", {}, `${count(row.received_tokens)} → ${count(row.sent_tokens)} tokens`),
    h("p", {}, `${sentence(row.why_text)} — ${meaning}.`),
    note !== null && h("button", { type: "button", class: "small", onclick: () => openNote(policy, note) }, `Open note ${note}`));
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Returns text nodes with the ranges in `mark` elements. */
function marked(text, ranges) {
  const nodes = [];
  let at = 0;
  for (const [from, to] of ranges) {
    nodes.push(h("span", { class: "left-out" }, visible(text.slice(at, from))), h("mark", {}, visible(text.slice(from, to))));
    at = to;
  }
  nodes.push(h("span", { class: "left-out" }, visible(text.slice(at))));
  return nodes;
}
