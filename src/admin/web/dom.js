// Builds elements. Text from outside becomes text nodes only: nothing here parses HTML.

/**
 * Creates an element. `props`: `class`, `data` (an object), `style` (an object of CSS properties),
 * functions under `on…` as listeners, `value` and `checked` as properties, others as attributes;
 * `null`, `undefined` and `false` are left out. Children are nodes, texts, numbers or lists of them.
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** Creates an SVG element. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on") && typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (name === "class") {
      element.setAttribute("class", value);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "style") {
      // The policy of the page forbids style attributes, not properties.
      for (const [key, own] of Object.entries(value)) element.style.setProperty(key, own);
    } else if (name === "value" || name === "checked") {
      element[name] = value;
    } else if (name === "href" && !/^(#|\/(?!\/))/.test(value)) {
      throw new Error("links lead to this dashboard alone");
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces the children of an element. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

let ids = 0;

/** Returns an id that no other element has. */
export function freshId(prefix = "id") {
  ids += 1;
  return `${prefix}-${ids}`;
}

/** Creates a labelled field: `field("Team", input, "a hint")`. */
export function field(label, control, hint) {
  control.id ||= freshId("field");
  const about = hint && h("small", { id: freshId("hint") }, hint);
  if (about) control.setAttribute("aria-describedby", about.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, about);
}

/** Creates a notice: `kind` is `error`, `good` or `info`. Errors are announced. */
export function notice(kind, ...children) {
  return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, children);
}

/** Creates the message of an empty page or table: a title, and advice on the next step. */
export function empty(title, ...children) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), children);
}

/** Creates a block of text to copy, with a button. */
export function copyable(text, label = "Copy") {
  const button = h("button", { type: "button", class: "small" }, label);
  const code = h("code", { tabindex: "0" }, text);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // Without permission, the text is selected for copying by hand.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
  return h("div", { class: "copyable" }, code, button);
}

/**
 * Creates a table that scrolls sideways on narrow screens. A column is `{name, of, kind}`: `of`
 * returns a cell's content, `kind` is `number` for figures.
 */
export function table(caption, columns, rows, onrow) {
  const kind = (column) => (column.kind ? { class: column.kind } : {});
  const head = columns.map((column) => h("th", { scope: "col", ...kind(column) }, column.name));
  const body = rows.map((row) => {
    const cells = columns.map((column) => h("td", kind(column), column.of(row)));
    const line = h("tr", {}, cells);
    onrow?.(line, row);
    return line;
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/**
 * Creates a group of buttons with one choice. `choices` are `[value, label]`; `onchange` gets the
 * new value.
 */
export function segmented(label, choices, current, onchange) {
  const group = h("div", { class: "segmented", role: "group", "aria-label": label });
  for (const [value, name] of choices) {
    group.append(h("button", {
      type: "button",
      "aria-pressed": String(value === current),
      onclick: (event) => {
        for (const other of group.children) other.setAttribute("aria-pressed", "false");
        event.currentTarget.setAttribute("aria-pressed", "true");
        onchange(value);
      },
    }, name));
  }
  return group;
}

/** Asks a question in a dialog; resolves to whether it was confirmed. */
export function confirmed(title, text, action) {
  return new Promise((resolve) => {
    const heading = freshId("title");
    const dialog = h("dialog", { "aria-labelledby": heading, onclose: () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    } },
      h("h2", { id: heading }, title), h("p", {}, text),
      h("div", { class: "actions" },
        h("button", { type: "button", onclick: () => dialog.close("no") }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, action)));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Creates a page's heading with its controls. */
export function heading(title, ...controls) {
  return h("div", { class: "heading" }, h("h1", {}, title), h("div", { class: "controls" }, controls));
}
