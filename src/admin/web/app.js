// Shell of the dashboard: login, navigation by the address's fragment, theme. Pages are modules whose
// default export is `render(root, api, params)`; it may return a function that ends its work.

import { api, onSessionEnd } from "./api.js";
import { h, notice, put } from "./dom.js";
import login from "./pages/login.js";

/** Pages by their path behind `#/`, with the module that renders each. */
const PAGES = {
  "": ["Overview", "./pages/overview.js"],
  live: ["Live", "./pages/live.js"],
  usage: ["Usage", "./pages/usage.js"],
  budgets: ["Budgets", "./pages/budgets.js"],
  keys: ["Keys", "./pages/keys.js"],
  upstreams: ["Upstreams", "./pages/upstreams.js"],
  inspector: ["Inspector", "./inspector/inspector.js"],
  configuration: ["Configuration", "./pages/configuration.js"],
};

const main = document.getElementById("main");
const bar = document.getElementById("bar");
const themeButton = document.getElementById("theme");

let close = null;
let shown = 0;

/** Splits the fragment into a page's path and its parameters. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return [path, new URLSearchParams(query)];
}

function leave() {
  const ending = close;
  close = null;
  if (typeof ending === "function") ending();
}

async function show() {
  const [path, params] = place();
  if (path.startsWith("code=")) return enter();
  leave();
  shown += 1;
  const own = shown;
  for (const link of bar.querySelectorAll("nav a")) {
    const isCurrent = link.getAttribute("href") === `#/${path}`;
    if (isCurrent) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else {
      link.removeAttribute("aria-current");
    }
  }
  const page = PAGES[path];
  document.title = page ? `${page[0]} · weir` : "weir";
  // Each page has a root of its own, so that one that ends late changes nothing.
  const root = h("div", { class: "page" });
  put(main, root);
  main.setAttribute("aria-busy", "true");
  if (!page) {
    main.setAttribute("aria-busy", "false");
    put(root, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/" }, "Go to the overview")));
    return;
  }
  try {
    const module = await import(page[1]);
    if (own !== shown) return;
    const ending = await module.default(root, api, params);
    if (own === shown) {
      close = ending;
      main.setAttribute("aria-busy", "false");
    } else if (typeof ending === "function") ending();
  } catch (error) {
    if (own === shown && error.status !== 401) {
      main.setAttribute("aria-busy", "false");
      put(root, h("h1", {}, page[0]), notice("error", error.message),
        h("p", {}, h("button", { type: "button", onclick: show }, "Try again")));
    }
  }
}

/** Shows the dashboard, or the login if there is no session. */
async function enter() {
  const [path] = place();
  const code = path.startsWith("code=") ? decodeURIComponent(path.slice(5)) : null;
  if (code !== null) {
    // The code must not stay in the address or in the history.
    history.replaceState(null, "", "#/");
  }
  try {
    if (code !== null) await api.post("/login", { code });
    const session = await api.get("/login");
    if (session.signed_in) return begin();
    ask();
  } catch (error) {
    ask(error.message);
  }
}

function ask(message) {
  leave();
  shown += 1;
  bar.hidden = true;
  document.title = "Log in · weir";
  main.setAttribute("aria-busy", "false");
  login(put(main), api, { message, done: begin });
}

function begin() {
  bar.hidden = false;
  return show();
}

const THEMES = ["system", "light", "dark"];

function theme() {
  return document.documentElement.dataset.choice;
}

function showTheme() {
  themeButton.textContent = `Theme: ${theme()}`;
}

themeButton.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") localStorage.removeItem("weir-theme");
  else localStorage.setItem("weir-theme", next);
  window.dispatchEvent(new Event("weir-choice"));
  showTheme();
});

document.getElementById("logout").addEventListener("click", async () => {
  try {
    await api.post("/logout");
    ask();
  } catch (error) {
    put(main, notice("error", error.message));
  }
});

onSessionEnd(() => {
  if (!bar.hidden) ask("Your session has ended. Log in again.");
});

window.addEventListener("hashchange", () => (bar.hidden ? enter() : show()));

document.querySelector(".skip").addEventListener("click", (event) => {
  // The fragment names the page, so the link must not change it.
  event.preventDefault();
  main.focus();
});

showTheme();
enter();
