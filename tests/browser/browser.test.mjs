// The dashboard in a real browser: what an operator does on its pages, that they stay readable in
// both themes and on a phone, and that names from outside are text and nothing else.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";

import { Browser, Setting } from "./harness.mjs";

/** Pages by their place, with their headings. */
const PAGES = [
  ["", "Overview"], ["live", "Live"], ["usage", "Usage"], ["budgets", "Budgets"], ["keys", "Keys"],
  ["upstreams", "Upstreams"], ["configuration", "Configuration"],
];
const HOSTILE = [`<img src=x onerror=alert(1)>`, `"><script>alert(2)</script>`];

let setting;
let browser;

before(async () => {
  [setting, browser] = await Promise.all([Setting.start(), Browser.start()]);
});

afterEach(() => browser.rest());

after(async () => {
  await browser?.stop();
  await setting?.stop();
});

/** Checks that nothing went wrong on a page, and nothing was asked of another place. */
function assertClean({ watched }) {
  assert.deepEqual(watched, { errors: [], foreign: [] });
}

/** A conversation of some thousand tokens. */
function long(turns) {
  const text = (number) => `Turn ${number}: ${"the gate stands at level ".repeat(40)}${number}.`;
  const messages = [{ role: "system", content: "You watch a weir." }];
  for (let turn = 0; turn < turns; turn += 1) {
    messages.push({ role: "user", content: text(turn) }, { role: "assistant", content: text(turn) });
  }
  return [...messages, { role: "user", content: "And now?" }];
}

async function created(view, fields) {
  await view.press("Create a key");
  for (const [label, text] of Object.entries(fields)) await view.fill(label, text);
  await view.press("Create");
  await view.shows("has a secret");
  return view.page.$eval(".notice.good code", (code) => code.textContent);
}

test("a wrong token is refused, the right one shows pages that say what to do first", async () => {
  const view = await browser.open(setting);
  await view.page.goto(setting.dashboard);
  await view.page.waitForSelector("input[name=token]");
  assert.deepEqual(await view.judge(), []);
  await view.page.type("input[name=token]", "wrong");
  await view.press("Log in");
  await view.shows("This is not the token");
  // The browser itself reports the refused login.
  assert.equal(view.watched.errors.length, 1);
  view.watched.errors.length = 0;
  await view.logIn();
  await view.shows("No requests today");
  await view.shows(`OPENAI_BASE_URL=http://${setting.address}/v1`);
  for (const [place, title] of PAGES) {
    await view.go(place, title);
    assert.deepEqual(await view.judge(), [], title);
  }
  assertClean(view);
});

test("a key that is created counts the traffic sent with it, until it is revoked", async () => {
  const view = await browser.open(setting);
  await view.logIn();
  await view.go("keys", "Keys");
  const secret = await created(view, { Name: "research", Team: "search", Models: "gpt-4o*", "Requests a minute": "100" });
  assert.match(secret, /^sk-weir-/);
  for (const turns of [1, 2, 30]) {
    const answer = await setting.chat(secret, long(turns), { headers: { "x-session-id": "thread-1" } });
    assert.equal(answer.status, 200);
    await answer.text();
  }
  assert.equal((await setting.chat(secret, long(1), { model: "o3" })).status, 403);

  await view.go("live", "Live");
  await view.shows("thread-1");
  await view.shows("compaction");
  await view.waitFor(() => document.querySelectorAll("main tbody tr").length >= 3);
  await view.press("Pause");
  await view.page.waitForSelector("button[aria-pressed=true]");

  const { data: [usage] } = await setting.read("/admin/v1/usage?by=key");
  assert.equal(usage.requests - usage.errors, 3);
  await view.go("", "Overview");
  await view.shows(`${usage.requests} requests`);
  const titles = await view.page.$$eval(".figure[title^='$']", (all) => all.map((figure) => figure.title));
  assert.deepEqual(titles.slice(0, 2), [`$${usage.saved_usd}`, `$${usage.cost_usd}`]);
  assert.equal(await view.page.$$eval(".chart canvas", (all) => all.length), 6);

  for (const by of ["key", "team", "conversation", "model"]) {
    await view.go(`usage?by=${by}&time=today`, "Usage");
    await view.shows({ key: "research", team: "search", conversation: "thread-1", model: "gpt-4o" }[by]);
  }

  await view.go("keys", "Keys");
  await view.press("Revoke research");
  await view.page.waitForSelector("dialog[open]");
  await view.press("Cancel");
  assert.equal((await setting.chat(secret, long(1))).status, 200);
  await view.press("Revoke research");
  await view.page.waitForSelector("dialog[open]");
  await view.press("Revoke");
  await view.shows("research is revoked");
  assert.equal((await setting.chat(secret, long(1))).status, 401);
  assertClean(view);
});

test("a budget is set, shown with its spending and removed", async () => {
  const view = await browser.open(setting);
  await view.logIn();
  await view.go("budgets", "Budgets");
  await view.page.click("summary");
  await view.fill("At most", "12.50");
  await view.press("Set budget");
  await view.shows("applies from the next request on");
  await view.shows("$12.50 a day");
  const { data: [budget] } = await setting.read("/admin/v1/budgets");
  assert.equal(budget.budget, "all/usd/day");
  assert.equal(Number(budget.limit), 12.5);
  assert.ok(Number(budget.spent) > 0, "the journal's spending of the day counts");
  await view.press("Remove all/usd/day");
  await view.page.waitForSelector("dialog[open]");
  await view.press("Remove");
  await view.shows("Removed all/usd/day");
  await view.shows("No budgets");
  assertClean(view);
});

test("names from outside are text", async () => {
  const view = await browser.open(setting);
  await view.logIn();
  await view.go("keys", "Keys");
  const [image, script] = HOSTILE;
  const secret = await created(view, { Name: image, Team: script, User: image });
  for (const model of HOSTILE) {
    await setting.chat(secret, long(1), { model, headers: { "x-session-id": image, "user-agent": script } });
  }
  await setting.chat(secret, long(1), { headers: { "x-session-id": script } });
  await fetch(`${setting.dashboard}/admin/v1/budgets`, {
    method: "PUT", headers: { authorization: `Bearer ${setting.token}` },
    body: JSON.stringify({ scope: `team:${script}`, usd: "5", per: "month" }),
  });
  const places = [...PAGES, ...["key", "team", "user", "model", "agent", "conversation"].map((by) => [`usage?by=${by}&time=today`, "Usage"])];
  let seen = 0;
  for (const [place, title] of places) {
    await view.go(place, title);
    const text = await view.text();
    seen += HOSTILE.filter((name) => text.includes(name)).length;
    assert.equal(await view.page.$$eval("[onerror], main script, main img", (all) => all.length), 0, place);
  }
  assert.ok(seen >= 8, `the names were shown ${seen} times`);
  assertClean(view);
});

test("pages are readable in both themes, on a screen and on a phone", async () => {
  const view = await browser.open(setting);
  await view.logIn();
  const wrong = [];
  for (const theme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      await view.look(theme, width);
      for (const [place, title] of PAGES) {
        await view.go(place, title);
        wrong.push(...(await view.judge()).map((one) => `${title}, ${theme}, ${width}: ${one}`));
        await view.picture(`${title.toLowerCase()}-${theme}-${width}`);
      }
    }
  }
  assert.deepEqual(wrong, []);
  assertClean(view);
});

test("the configuration in force follows a reload, and a refused one is shown", async () => {
  const view = await browser.open(setting);
  await view.logIn();
  await setting.reconfigure("max_input_tokens = 4000", "max_input_tokens = 5000");
  await view.go("configuration", "Configuration");
  await view.shows("applied");
  await view.shows("limits[0].max_input_tokens");
  const rows = await view.page.$$eval("main tbody tr", (all) => all.map((row) => row.innerText));
  assert.ok(rows.some((row) => row.includes("limits[0].max_input_tokens") && row.includes("5000")), rows.join("\n"));
  assert.ok(!rows.some((row) => row.includes("defaults")), "defaults are shown on demand");
  await setting.reconfigure("max_input_tokens = 5000", "max_input_tokens = \"many\"");
  await view.go("configuration", "Configuration");
  await view.shows("Refused: the configuration before stays in force");
  await view.shows("max_input_tokens");
  assert.deepEqual(await view.judge(), []);
  await setting.reconfigure("max_input_tokens = \"many\"", "max_input_tokens = 4000");
  assert.ok(!(await view.text()).includes("sk-provider"));
  assertClean(view);
});

test("the keyboard reaches the pages, and a dialog keeps it", async () => {
  const view = await browser.open(setting);
  await view.logIn();
  await view.go("", "Overview");
  await view.page.keyboard.press("Tab");
  assert.equal(await view.page.evaluate(() => document.activeElement.textContent), "Skip to the page");
  await view.page.keyboard.press("Enter");
  assert.equal(await view.page.evaluate(() => document.activeElement.id), "main");
  await view.go("keys", "Keys");
  await view.press("Create a key");
  await view.page.waitForSelector("dialog[open]");
  assert.deepEqual(await view.judge(), []);
  assert.ok(await view.page.evaluate(() => document.activeElement.closest("dialog") !== null));
  await view.page.keyboard.press("Escape");
  await view.waitFor(() => document.querySelector("dialog") === null);
  assertClean(view);
});

test("a logout ends the session of all pages", async () => {
  const view = await browser.open(setting);
  await view.logIn();
  const other = await view.page.browserContext().newPage();
  await other.goto(`${setting.dashboard}/#/keys`);
  await other.waitForFunction(() => document.querySelector("h1")?.textContent === "Keys");
  await view.page.bringToFront();
  await view.press("Log out");
  await view.page.waitForSelector("input[name=token]");
  await other.bringToFront();
  await other.evaluate(() => { location.hash = "#/budgets"; });
  await other.waitForSelector("input[name=token]");
  assertClean(view);
});

test("a link of weir serve --open logs in once", async () => {
  const opened = await Setting.start({ flags: ["--open"] });
  try {
    const line = () => opened.weir.lines.find((own) => own.includes("#code="))?.trim();
    while (!line()) await new Promise((resolve) => opened.weir.child.stdout.once("data", resolve));
    const view = await browser.open(opened);
    await view.page.goto(line());
    await view.ready("Overview");
    assert.ok(!view.page.url().includes("code"), "the code leaves the address");
    assertClean(view);
    const again = await browser.open(opened);
    await again.page.goto(line());
    await again.shows("This link has been used");
  } finally {
    await opened.stop();
  }
});
