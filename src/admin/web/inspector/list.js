// List of messages with their fates, for reading, searching and screen readers. Rows exist only where
// they are seen.

import { h, put } from "../dom.js";
import { count } from "../format.js";
import { FATES } from "./fates.js";

const ROW = 30;
const AROUND = 12;

/** Creates the list; `onopen` gets the index of the message that the reader opens. */
export function list(onopen) {
  const search = h("input", {
    type: "search", placeholder: "Filter by role, tool, fate, reason or words", "aria-label": "Filter messages",
    oninput: () => show(),
  });
  const found = h("span", { class: "hint", "aria-live": "polite" });
  const body = h("div", { class: "inspector-rows", role: "rowgroup" });
  const scroller = h("div", { class: "inspector-list-scroll", onscroll: () => paint() }, body);
  const names = ["#", "Role", "First words", "Before", "After", "Fate", "Reason"];
  const head = h("div", { class: "inspector-row head", role: "row" },
    names.map((name) => h("span", { role: "columnheader" }, name)));
  const grid = h("div", { class: "inspector-list", role: "table", "aria-label": "Messages" },
    h("div", { role: "rowgroup" }, head), scroller);
  const box = h("div", {}, h("div", { class: "inspector-search" }, search, found), grid);
  let rows = [];
  let shown = [];
  let selected = null;
  let only = null;

  function show() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = rows.filter((row) => (only === null || row.fate === only) && words.every((word) => row.text.includes(word)));
    put(found, `${count(shown.length)} of ${count(rows.length)} messages`);
    body.style.setProperty("height", `${shown.length * ROW}px`);
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    paint();
  }

  function paint() {
    const from = Math.max(Math.floor(scroller.scrollTop / ROW) - AROUND, 0);
    const to = Math.min(from + Math.ceil((scroller.clientHeight || 600) / ROW) + 2 * AROUND, shown.length);
    put(body, shown.slice(from, to).map((row, index) => line(row, from + index)));
  }

  function line(row, place) {
    const [label, , letter] = FATES[row.fate];
    const open = h("button", { type: "button", class: "link", onclick: () => {
      selected = row.index;
      paint();
      onopen(row.index);
    } }, row.first_words || "(no text)");
    const fate = h("span", { class: `fate ${row.fate}` }, h("b", { "aria-hidden": "true" }, letter), label);
    const cells = [row.index, row.tool ? `${row.role} ${row.tool}` : row.role, open, count(row.received_tokens),
      count(row.sent_tokens), fate, row.why_text];
    const line = h("div", { class: "inspector-row", role: "row", "aria-rowindex": String(place + 2),
      "aria-current": row.index === selected ? "true" : null },
    cells.map((cell) => h("span", { role: "cell" }, cell)));
    line.style.setProperty("top", `${place * ROW}px`);
    return line;
  }

  return {
    box,
    /** Shows the messages of a plan. */
    set(messages, appearances) {
      rows = messages.map((row, index) => {
        const fate = appearances[index];
        const text = [row.index, row.role, row.tool, fate, FATES[fate][0], row.why_text, row.first_words].join(" ");
        return { ...row, fate, text: text.toLowerCase() };
      });
      show();
    },
    select(message) {
      selected = message;
      paint();
    },
    filter(fate) {
      only = fate;
      show();
    },
    paint,
  };
}
