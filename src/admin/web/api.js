// Requests to the admin API, with the session's cookie.

/** Refusal of the admin API. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let ended = () => {};

/** Calls `action` when the session has ended. */
export function onSessionEnd(action) {
  ended = action;
}

async function send(method, path, body, signal) {
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["x-weir-csrf"] = "1";
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, signal, credentials: "same-origin", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "weir does not answer. Is it running?");
  }
  const text = await answer.text();
  let json = null;
  try {
    json = JSON.parse(text);
  } catch {
    throw new ApiError(answer.status, "not_json", `weir answered ${answer.status} without JSON.`);
  }
  if (answer.ok) return json;
  const { message = "The request failed.", code = "" } = json?.error ?? {};
  if (answer.status === 401 && path !== "/login") ended();
  throw new ApiError(answer.status, code, message);
}

export const api = {
  get: (path, signal) => send("GET", path, undefined, signal),
  post: (path, body = {}, signal) => send("POST", path, body, signal),
  put: (path, body) => send("PUT", path, body),
  patch: (path, body) => send("PATCH", path, body),
  remove: (path) => send("DELETE", path),

  /** Returns all rows of a list with pages, up to `limit`. */
  async all(path, limit = 10_000) {
    const rows = [];
    let after = null;
    do {
      const mark = path.includes("?") ? "&" : "?";
      const next = after === null ? path : `${path}${mark}after=${encodeURIComponent(after)}`;
      const page = await send("GET", next);
      rows.push(...page.data);
      after = page.next ?? null;
    } while (after !== null && rows.length < limit);
    return rows;
  },
};
