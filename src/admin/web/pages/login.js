// Login with the admin token.

import { field, h, notice, put } from "../dom.js";

/** Shows the form; calls `done` after a login. */
export default function login(root, api, { message, done }) {
  const said = h("div", {});
  if (message) put(said, notice("error", message));
  const token = h("input", {
    type: "password", name: "token", autocomplete: "current-password", required: true,
    spellcheck: "false",
  });
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h("form", { class: "login", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await api.post("/login", { token: token.value.trim() });
      done();
    } catch (error) {
      put(said, notice("error", error.message));
      button.disabled = false;
      token.select();
    }
  } },
    h("h1", {}, h("img", { src: "/icon.svg", alt: "", width: "28", height: "28" }), "weir"),
    said,
    field("Admin token", token,
      "weir printed it when it first started, and keeps it in admin.token next to its store."),
    button,
    h("p", { class: "hint" }, "On your own machine, ", h("code", {}, "weir serve --open"),
      " logs you in with one click."));
  put(root, form);
  token.focus();
}
