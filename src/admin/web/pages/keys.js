// Virtual keys: list, create, limit, rotate, revoke. A secret is shown once and kept nowhere.

import { confirmed, copyable, empty, field, freshId, h, heading, notice, put, table } from "../dom.js";
import { count, day, utc } from "../format.js";

export default async function render(root, api, params) {
  const said = h("div", {});
  const list = h("div", {});
  const status = await api.get("/admin/v1/status");
  const state = { team: params.get("team") ?? "", text: "", revoked: false, keys: [] };

  const show = async () => {
    const query = state.team ? `?${new URLSearchParams({ team: state.team })}` : "";
    state.keys = await api.all(`/admin/v1/keys${query}`, 5000);
    draw();
  };
  const draw = () => put(list, listing(state, actions));
  const act = async (action, done) => {
    try {
      const answer = await action();
      await show();
      put(said, done(answer));
      said.scrollIntoView({ block: "nearest" });
      return true;
    } catch (error) {
      put(said, notice("error", error.message));
      return false;
    }
  };
  const actions = {
    edit: (key) => dialog(`Limit ${key.name}`, key, async (body) =>
      act(() => api.patch(`/admin/v1/keys/${encodeURIComponent(key.id)}`, body), () => notice("good", `${key.name} has its new limits from the next request on.`))),
    rotate: async (key) => {
      if (!await confirmed(`Give ${key.name} a new secret?`, "The current secret keeps working for one more day, so that callers can change over.", "Rotate")) return;
      await act(() => api.post(`/admin/v1/keys/${encodeURIComponent(key.id)}/rotate`, { overlap_ms: 86_400_000 }), (made) => secret(made, status));
    },
    revoke: async (key) => {
      if (!await confirmed(`Revoke ${key.name}?`, "Its callers get 401 from the next request on. This cannot be undone.", "Revoke")) return;
      await act(() => api.post(`/admin/v1/keys/${encodeURIComponent(key.id)}/revoke`), () => notice("good", `${key.name} is revoked.`));
    },
    create: () => dialog("Create a key", null, async (body) => act(() => api.post("/admin/v1/keys", body), (made) => secret(made, status))),
  };
  const search = h("input", { type: "search", placeholder: "Filter by any name", "aria-label": "Filter keys", oninput: (event) => {
    state.text = event.target.value.toLowerCase();
    draw();
  } });
  const revoked = h("input", { type: "checkbox", onchange: (event) => {
    state.revoked = event.target.checked;
    draw();
  } });
  put(root,
    heading("Keys", search, h("label", { class: "check" }, revoked, "revoked too"),
      h("button", { type: "button", class: "primary", onclick: actions.create }, "Create a key")),
    status.mode.callers === "open" && h("div", { class: "notice info" },
      "weir is in open mode: callers send their own provider keys, and virtual keys are refused. Set ",
      h("code", {}, "auth.mode = \"keys\""), " to use the keys below."),
    said, list);
  await show();
}

function secret(made, status) {
  return h("div", { class: "notice good", role: "status" },
    h("p", {}, h("b", {}, made.name), " has a secret. It is shown only now; weir keeps a hash of it."),
    copyable(made.secret, "Copy secret"),
    h("p", {}, "Callers use it as their API key, with the base URL:"), copyable(status.base_url));
}

function listing(state, actions) {
  const text = (key) => `${key.name} ${key.id} ${key.team} ${key.user} ${key.models.join(" ")}`.toLowerCase();
  const rows = state.keys.filter((key) => (state.revoked || !key.revoked_ms) && text(key).includes(state.text));
  if (state.keys.length === 0) {
    return h("div", { class: "panel" }, empty("No keys yet",
      h("p", {}, "Each team, job or person gets a key of its own, with limits and budgets. The provider's key stays with weir."),
      h("p", {}, h("button", { type: "button", class: "primary", onclick: actions.create }, "Create the first key"))));
  }
  if (rows.length === 0) return h("div", { class: "panel" }, empty("No key fits the filter"));
  const button = (label, action, key, kind = "") => h("button", {
    type: "button", class: `small ${kind}`, onclick: () => action(key), "aria-label": `${label} ${key.name}`,
  }, label);
  return h("section", { class: "panel" }, table("Keys", [
    { name: "Name", kind: "name", of: (key) => [h("b", {}, key.name), h("br", {}), h("small", { class: "mono" }, key.secrets.map((one) => one.hint).join(", ") || key.id)] },
    { name: "Team", kind: "name", of: (key) => [key.team, key.user && h("small", {}, h("br", {}), key.user)] },
    { name: "Models", kind: "name", of: (key) => (key.models.length > 0 ? key.models.join(", ") : h("span", { class: "muted" }, "all")) },
    { name: "Limits", of: limits },
    { name: "Created", kind: "tight", of: (key) => h("span", { title: utc(key.created_ms) }, day(key.created_ms)) },
    { name: "State", of: stateOf },
    { name: "Actions", kind: "number", of: (key) => !key.revoked_ms && h("span", { class: "actions end" },
      button("Limit", actions.edit, key), button("Rotate", actions.rotate, key), button("Revoke", actions.revoke, key, "danger")) },
  ], rows));
}

function limits(key) {
  const parts = [
    [key.requests_per_minute, "requests/min"], [key.tokens_per_minute, "tokens/min"], [key.max_concurrent, "at once"],
  ].filter(([value]) => value !== null && value !== undefined);
  const policy = key.policy ? [`policy ${key.policy}`] : [];
  const all = [...parts.map(([value, unit]) => `${count(value)} ${unit}`), ...policy];
  return all.length > 0 ? all.map((text) => h("div", { class: "tight" }, text)) : h("span", { class: "muted" }, "none");
}

function stateOf(key) {
  if (key.revoked_ms) return h("span", { class: "tag bad", title: utc(key.revoked_ms) }, "revoked");
  if (key.expires_ms && key.expires_ms <= Date.now()) return h("span", { class: "tag warn", title: utc(key.expires_ms) }, "expired");
  if (key.expires_ms) return h("span", { class: "tag", title: utc(key.expires_ms) }, `until ${day(key.expires_ms)}`);
  return h("span", { class: "tag good" }, "active");
}

/** Shows the form for a new key, or for the limits of an existing one. */
function dialog(title, key, submit) {
  const list = (text) => text.split(",").map((one) => one.trim()).filter((one) => one !== "");
  const number = (name) => h("input", { type: "number", min: "0", step: "1", value: key?.[name] ?? "", placeholder: "no limit" });
  const inputs = {
    name: h("input", { type: "text", required: true, maxlength: "100", value: key?.name ?? "", autocomplete: "off" }),
    team: key ? null : h("input", { type: "text", maxlength: "100", placeholder: "default" }),
    user: h("input", { type: "text", maxlength: "100", value: key?.user ?? "" }),
    models: h("input", { type: "text", value: key?.models.join(", ") ?? "", placeholder: "all" }),
    policy: h("input", { type: "text", maxlength: "100", value: key?.policy ?? "", placeholder: "the default" }),
    requests_per_minute: number("requests_per_minute"),
    tokens_per_minute: number("tokens_per_minute"),
    max_concurrent: number("max_concurrent"),
    cached_tokens_free: h("input", { type: "checkbox", checked: key?.cached_tokens_free ?? false, id: freshId("field") }),
    expires: h("input", { type: "datetime-local", value: key?.expires_ms ? local(key.expires_ms) : "" }),
    passthrough: h("input", { type: "checkbox", checked: key?.passthrough ?? false, id: freshId("field") }),
  };
  const whole = (input) => (input.value === "" ? null : Number(input.value));
  const body = () => {
    const members = {
      name: inputs.name.value.trim(), user: inputs.user.value.trim(), models: list(inputs.models.value),
      policy: inputs.policy.value.trim() || null, passthrough: inputs.passthrough.checked,
      cached_tokens_free: inputs.cached_tokens_free.checked,
      requests_per_minute: whole(inputs.requests_per_minute), tokens_per_minute: whole(inputs.tokens_per_minute),
      max_concurrent: whole(inputs.max_concurrent),
      expires_ms: inputs.expires.value === "" ? null : new Date(inputs.expires.value).getTime(),
    };
    if (inputs.team && inputs.team.value.trim() !== "") members.team = inputs.team.value.trim();
    return members;
  };
  const label = freshId("title");
  const shown = h("dialog", { "aria-labelledby": label, onclose: () => shown.remove() },
    h("h2", { id: label }, title),
    h("form", { class: "form", onsubmit: async (event) => {
      event.preventDefault();
      shown.close();
      await submit(body());
    } },
      field("Name", inputs.name), inputs.team && field("Team", inputs.team, "made if it does not exist"),
      field("User", inputs.user), field("Models", inputs.models, "patterns, such as gpt-4o*, claude-*"),
      field("Policy", inputs.policy), field("Requests a minute", inputs.requests_per_minute),
      field("Tokens a minute", inputs.tokens_per_minute), field("Requests at once", inputs.max_concurrent),
      field("Expires", inputs.expires),
      h("div", { class: "field row wide" }, inputs.cached_tokens_free, h("label", { for: inputs.cached_tokens_free.id }, "Tokens a minute leave out cached ones")),
      h("div", { class: "field row wide" }, inputs.passthrough, h("label", { for: inputs.passthrough.id }, "May use routes that weir does not meter")),
      h("div", { class: "wide actions end" },
        h("button", { type: "button", onclick: () => shown.close() }, "Cancel"),
        h("button", { type: "submit", class: "primary" }, key ? "Save" : "Create"))));
  document.body.append(shown);
  shown.showModal();
}

/** Formats a time for an input of local time. */
function local(ms) {
  const date = new Date(ms);
  return new Date(ms - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
