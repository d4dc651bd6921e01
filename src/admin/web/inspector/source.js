// Reads the conversation to inspect: pasted, chosen or dropped, plain or gzip. It leaves the browser only
// for the admin API of the same weir.

import { empty, field, h, notice, put } from "../dom.js";
import { compact, moment } from "../format.js";

const LIVE = "/admin/v1/conversations";
/** How far back a live conversation is looked for in the journal. */
const JOURNAL_MS = 30 * 24 * 3600 * 1000;

/** Reads a file as text, up to `mostBytes` after decompression. */
export async function textOf(file, mostBytes) {
  const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  const isGzip = head[0] === 0x1f && head[1] === 0x8b;
  let stream = file.stream();
  if (isGzip) stream = stream.pipeThrough(new DecompressionStream("gzip"));
  const reader = stream.getReader();
  const parts = [];
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes += value.length;
    if (bytes > mostBytes) {
      reader.cancel();
      throw new Error(`The file has more than ${compact(mostBytes)} bytes. Cut it into parts.`);
    }
    parts.push(value);
  }
  return new Blob(parts).text();
}

/** Shows the ways to open a conversation; `opened` gets `{text, name}`. */
export function chooser({ opened, mostBytes, sample, api }) {
  const said = h("div", {});
  const area = h("textarea", {
    rows: "7", spellcheck: "false", class: "mono", placeholder: '{"model": "…", "messages": […]}',
  });
  const input = h("input", {
    type: "file", class: "unseen", tabindex: "-1", "aria-label": "Conversation file",
    accept: ".json,.jsonl,.gz,.ndjson,.txt", onchange: () => take(input.files[0]),
  });
  async function take(file) {
    if (!file) return;
    put(said, notice("info", `Reading ${file.name} …`));
    try {
      const text = await textOf(file, mostBytes);
      put(said);
      opened({ text, name: file.name });
    } catch (error) {
      put(said, notice("error", error.message));
    }
  }
  const paste = () => {
    if (area.value.trim()) return opened({ text: area.value, name: "pasted text" });
    put(said, notice("error", "Paste a conversation first, or choose a file."));
    area.focus();
  };
  const live = h("div", { class: "inspector-live" });
  showLive();
  /** Lists the conversations that pass through this weir, or how to see them. */
  async function showLive() {
    try {
      const { is_on, data } = await api.get(LIVE);
      put(live, h("h2", {}, "Live conversations"),
        !is_on && h("p", { class: "hint" }, "Off. Set ", h("code", {}, "admin.show_conversations = true"), " and ",
          h("code", {}, 'context.originals = "memory"'), " to see them here."),
        is_on && data.length === 0 && h("p", { class: "hint" }, "None yet. They appear with their first request."),
        data.length > 0 && h("ul", {}, data.map((row) => h("li", {},
          h("button", { type: "button", class: "small", onclick: () => openLive(row) },
            [row.agent, row.conversation].filter(Boolean).join(" · ")),
          h("span", { class: "hint" }, `${row.model}, ${compact(row.bytes)} bytes${row.team ? `, ${row.team}` : ""}, ${moment(row.updated_ms)}`)))));
    } catch (error) {
      put(live, notice("error", error.message));
    }
  }
  async function openLive(row) {
    try {
      const { text, ...own } = await api.get(`${LIVE}/${row.id}`);
      opened({ text, ...own, name: row.conversation, journal: await journalOf(own) });
    } catch (error) {
      put(said, notice("error", error.message));
      showLive();
    }
  }
  /** Totals of a conversation in the journal; null if it has none yet. */
  async function journalOf({ conversation, agent, key }) {
    const names = Object.entries({ conversation, agent, key }).filter(([, name]) => name);
    const since = String(Math.max(Date.now() - JOURNAL_MS, 0));
    const query = new URLSearchParams([...names, ["since", since], ["detail", "true"]]);
    return (await api.get(`/admin/v1/usage?${query}`)).data[0] ?? null;
  }
  const box = h("section", { class: "panel inspector-source" },
    empty("Look into a conversation",
      h("p", {}, "See each message before and after, the reason for its fate, and the cost of every " +
        "compaction. No model is asked, and weir keeps nothing of it."),
      h("div", { class: "actions" },
        h("button", { type: "button", class: "primary", onclick: sample }, "Try the sample"),
        h("button", { type: "button", onclick: () => input.click() }, "Choose a file …"), input,
        h("span", { class: "hint" }, "or drop one here"))),
    said,
    live,
    field("Or paste it", area,
      "A request body (chat completions, Responses or Messages), JSON lines as weir replay reads, or " +
      "the transcript of Claude Code or codex."),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: paste }, "Inspect")));
  return { box, take };
}

/** Lets files be dropped anywhere on `root`; returns the function that ends this. */
export function dropZone(root, take) {
  let inside = 0;
  const mark = (isOver) => root.classList.toggle("dropping", isOver);
  const on = {
    dragenter: () => mark((inside += 1) > 0),
    dragleave: () => mark((inside -= 1) > 0),
    dragover: (event) => event.preventDefault(),
    drop: (event) => {
      event.preventDefault();
      inside = 0;
      mark(false);
      take(event.dataTransfer.files[0]);
    },
  };
  for (const [name, action] of Object.entries(on)) root.addEventListener(name, action);
  return () => Object.entries(on).forEach(([name, action]) => root.removeEventListener(name, action));
}
