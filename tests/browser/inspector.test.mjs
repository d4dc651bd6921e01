// The inspector in a real browser: the sample, the slider, two policies, hostile texts, large
// conversations and the keyboard, in both themes and on a phone.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { after, afterEach, before, test } from "node:test";

import { Browser, REPOSITORY, Setting } from "./harness.mjs";

const TRACE = path.join(REPOSITORY, "tests/data/traces/sample.jsonl.gz");

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

/** Opens the inspector in a session of its own. */
async function opened(place = "inspector") {
  const view = await browser.open(setting);
  await view.page.setViewport({ width: 1400, height: 1000 });
  await view.logIn();
  await view.go(place, "Inspector");
  const { page } = view;
  return Object.assign(view, {
    /** Waits until a conversation is planned and shown. */
    planned: () => page.waitForSelector(".inspector-results:not([hidden]):not([aria-busy]) .figure"),
    async file(name) {
      await (await page.waitForSelector("input[type=file]")).uploadFile(name);
    },
    /** Sets an option by its label, and waits for the plans under it. */
    async set(label, value) {
      await page.evaluate((label_, value_) => {
        const own = [...document.querySelectorAll("label")].find((one) => one.textContent === label_);
        const control = document.getElementById(own.htmlFor);
        control.value = value_;
        control.dispatchEvent(new Event("change"));
      }, label, value);
      await page.waitForSelector(".inspector-results:not([aria-busy])");
    },
    of: (selector) => page.$eval(selector, (element) => element.textContent),
    /** Waits until the text of an element fits a pattern. */
    reads: (selector, pattern) => view.waitFor(
      (selector_, source) => new RegExp(source, "s").test(document.querySelector(selector_)?.textContent ?? ""),
      selector, pattern.source),
    async keys(key, times) {
      for (let count = 0; count < times; count += 1) await page.keyboard.press(key);
    },
  });
}

function assertClean({ watched }) {
  assert.deepEqual(watched, { errors: [], foreign: [] });
}

test("the sample shows turns, policies and texts", async () => {
  const view = await opened();
  const { page } = view;
  assert.deepEqual(await view.judge(), []);
  await view.press("Try the sample");
  await view.planned();
  await view.reads(".inspector-said", /^Turn 28 of 28: [\d,]+ tokens received, [\d,]+ sent/);
  assert.match(page.url(), /sample=1&compare=zones&limit=40%25/);
  assert.deepEqual(await page.$$eval(".inspector-gauges h2", (all) => all.map((one) => one.textContent)),
    ["Window, default", "Window, zones"]);
  assert.deepEqual(await view.judge(), []);

  const before = await view.of(".figure dd");
  await page.focus(".inspector-slider");
  await view.keys("ArrowLeft", 8);
  await view.reads(".inspector-said", /^Turn 20 of 28/);
  await view.waitFor((text) => document.querySelector(".figure dd").textContent !== text, before);
  await view.waitFor(() => location.hash.includes("turn=20"));
  await view.picture("inspector-compare");
  await view.press("compaction ▶");
  await view.reads(".inspector-said", /^Turn 2[1-8] of 28.*compaction \(evict\) reads [\d,]+ tokens again, which costs \$0/);

  await view.set("Compare with", "");
  await view.waitFor(() => document.querySelectorAll(".inspector-gauges h2").length === 1);
  await page.focus(".inspector-canvas");
  await view.keys("ArrowDown", 11);
  await page.keyboard.press("Enter");
  await view.reads(".inspector-detail h2", /^#10 tool read_file/);
  assert.match(await view.of(".inspector-verdict"), /In a note.*2,613 → 0 tokens.*Left out in compaction 1/s);
  assert.ok((await page.$$(".inspector-texts mark")).length > 3, "quoted parts are marked");
  await view.waitFor(() => document.activeElement.closest(".inspector-detail") !== null);
  assert.deepEqual(await view.judge(), []);
  await view.press("Open note 1");
  await view.reads(".inspector-detail h2", /^Note 1/);
  await view.reads(".inspector-texts pre", /^\[weir: 11 earlier messages/);

  await view.press("List");
  await page.type("input[type=search]", "read_file note");
  await view.reads(".inspector-search .hint", /^\d+ of [56]\d messages/);
  assert.deepEqual(await view.judge(), []);
  assertClean(view);
});

test("an inspection is saved as a file", async () => {
  const view = await opened("inspector?sample=1&limit=40%25&turn=9");
  await view.planned();
  const client = await view.page.createCDPSession();
  await client.send("Browser.setDownloadBehavior", {
    behavior: "allow", downloadPath: setting.folder, eventsEnabled: true,
    browserContextId: view.page.browserContext().id,
  });
  const saved = new Promise((resolve) => {
    client.on("Browser.downloadProgress", ({ state }) => state === "completed" && resolve());
  });
  await view.press("Export JSON");
  await saved;
  const inspection = JSON.parse(readFileSync(path.join(setting.folder, "weir-inspection.json"), "utf8"));
  assert.equal(inspection.object, "weir.inspection");
  assert.equal(inspection.turn, 9);
  assert.equal(inspection.policies[0].turns.length, 28);
  assert.equal(inspection.policies[0].plan.window.messages, inspection.turns[8]);
  assertClean(view);
});

test("the inspector is readable in both themes and on a phone", async () => {
  const view = await opened();
  for (const [theme, width] of [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390]]) {
    await view.look(theme, width);
    await view.go("inspector?sample=1&compare=zones&limit=40%25&turn=20", "Inspector");
    await view.planned();
    await view.reads(".inspector-said", /^Turn 20 of 28/);
    await view.page.focus(".inspector-canvas");
    await view.keys("ArrowDown", 9);
    await view.page.keyboard.press("Enter");
    await view.reads(".inspector-detail h2", /^#8 tool/);
    assert.deepEqual(await view.judge(), [], `${theme}, ${width} pixels`);
    await view.picture(`inspector-${theme}-${width}`);
  }
  assertClean(view);
});

test("the address opens the sample with its choices, and leaving the page keeps them", async () => {
  const view = await opened("inspector?sample=1&policy=zones&limit=8k&turn=12");
  await view.planned();
  await view.reads(".inspector-said", /^Turn 12 of 28/);
  assert.deepEqual(await view.page.$$eval(".inspector-options select", (all) => all.slice(1).map((one) => one.value)),
    ["zones", ""]);
  await view.page.evaluate(() => { location.hash = "#/configuration"; });
  await view.ready("Configuration");
  await view.page.evaluate(() => { location.hash = "#/inspector"; });
  await view.ready("Inspector");
  await view.planned();
  await view.reads(".inspector-said", /^Turn 12 of 28/);
  assert.match(view.page.url(), /policy=zones&limit=8k&turn=12/);
  assertClean(view);
});

test("hostile texts stay texts", async () => {
  const evil = '<script>window.pwned=1;alert(1)</script><img src=x onerror="window.pwned=1;alert(2)">' +
    '<svg onload=alert(3)>\u202eabc javascript:alert(4)';
  const messages = [{ role: "system", content: evil }];
  for (let turn = 0; turn < 40; turn += 1) {
    const id = `c${turn}`;
    messages.push({ role: "user", content: `${evil} part_${turn} ${"level ".repeat(30)}` });
    messages.push({ role: "assistant", content: null, tool_calls: [{ id, type: "function",
      function: { name: evil.slice(0, 60), arguments: JSON.stringify({ [evil]: evil }) } }] });
    messages.push({ role: "tool", tool_call_id: id, content: `${evil} result part_${turn}` });
  }
  const line = { id: evil, model: "<img src=x onerror=alert(5)>", messages };
  const name = path.join(setting.folder, "<img src=x onerror=alert(6)>.jsonl");
  writeFileSync(name, `${JSON.stringify(line)}\n${JSON.stringify({ ...line, id: `${evil} 2` })}\n`);
  const view = await opened();
  await view.file(name);
  await view.planned();
  await view.set("Limit (8k or 40%)", "30%");
  await view.page.waitForFunction(() => location.hash.includes("limit=30%25"));
  await view.planned();
  await view.page.focus(".inspector-canvas");
  await view.keys("ArrowDown", 4);
  await view.page.keyboard.press("Enter");
  await view.reads(".inspector-texts pre", /<script>window\.pwned=1;alert\(1\)<\/script>.*⟨U\+202E⟩/);
  await view.press("List");
  await view.set("Model", evil);
  await view.planned();
  assert.equal(await view.page.evaluate(() => window.pwned), undefined);
  assert.equal(await view.page.$$eval("main img, main script, main svg, main iframe", (all) => all.length), 0);
  assert.doesNotMatch(view.page.url(), /level/);
  assertClean(view);
});

test("a dropped file and a pasted text open", async () => {
  const view = await opened();
  const body = JSON.stringify({ model: "gpt-4o", messages: [{ role: "user", content: "Is the gate open?" }] });
  await view.page.evaluate((text) => {
    const data = new DataTransfer();
    data.items.add(new File([text], "dropped.json"));
    document.querySelector(".page").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
  }, body);
  await view.planned();
  await view.reads(".heading .hint", /^dropped\.json$/);
  await view.reads(".figure dd", /sent as received/);
  await view.press("Open another");
  await view.page.type("textarea", body);
  await view.press("Inspect");
  await view.planned();
  await view.reads(".inspector-said", /^Turn 1 of 1/);
  assertClean(view);
});

test("a trace of several conversations, and two thousand messages, open", async () => {
  const view = await opened();
  await view.file(TRACE);
  await view.planned();
  assert.equal(await view.page.$eval(".inspector-options select", (one) => one.options.length), 10);
  const first = await view.of(".inspector-said");
  await view.set("Conversation", "3");
  await view.planned();
  assert.match(view.page.url(), /conversation=3/);
  assert.notEqual(await view.of(".inspector-said"), first);
  await view.press("Open another");
  const messages = [{ role: "system", content: "Be brief." }];
  for (let turn = 0; turn < 1000; turn += 1) {
    messages.push({ role: "user", content: `Question ${turn} of part_${turn}. ${"level rises ".repeat(turn % 40)}` });
    messages.push({ role: "assistant", content: `Answer ${turn}: part_${turn} holds. `.repeat(1 + (turn % 7)) });
  }
  const name = path.join(setting.folder, "large.json");
  writeFileSync(name, JSON.stringify({ model: "gpt-4o", messages }));
  await view.file(name);
  await view.planned();
  await view.set("Limit (8k or 40%)", "30%");
  await view.reads(".figure:nth-child(3) dd", /^\d+in 1,00\d requests/);
  await view.page.evaluate(() => {
    const slider = document.querySelector(".inspector-slider");
    for (const turn of [900, 700, 500, 400]) {
      slider.value = String(turn);
      slider.dispatchEvent(new Event("input"));
    }
  });
  await view.reads(".inspector-said", /^Turn 400 of 100\d/);
  const width = await view.page.$eval(".inspector-canvas", (canvas) => canvas.width * canvas.height);
  assert.ok(width < 4_000_000, "the canvas is as large as its window, not as the conversation");
  assertClean(view);
});

test("mistakes are named where they are made", async () => {
  const view = await opened();
  await view.press("Inspect");
  await view.reads(".notice", /Paste a conversation first/);
  await view.page.type("textarea", "hello");
  await view.press("Inspect");
  await view.reads(".notice", /neither a request body/);
  // The browser logs refused requests by itself.
  view.watched.errors.splice(0);
  await view.press("Open another");
  await view.press("Try the sample");
  await view.planned();
  await view.set("Limit (8k or 40%)", "half");
  await view.reads(".notice", /Write tokens, such as 8000/);
  await view.set("Limit (8k or 40%)", "60");
  await view.reads(".figure dd", /^refused/);
  assertClean(view);
});

test("live conversations open with a click, once the operator allows it", async () => {
  const own = await Setting.start({ admin: "show_conversations = true", more: '[context]\noriginals = "memory"' });
  try {
    const hostile = "<img src=x onerror=alert(1)>";
    const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: `Look at ${hostile}` }];
    for (const text of ["It is an image.", "It is the same."]) {
      messages.push({ role: "assistant", content: text }, { role: "user", content: "Look again." });
    }
    const sent = await own.chat(await own.key("payments"), messages, { headers: { "x-session-id": hostile } });
    assert.equal(sent.status, 200);
    const view = await browser.open(own);
    await view.logIn();
    await view.go("inspector", "Inspector");
    await view.shows("Live conversations");
    await view.waitFor(() => document.querySelector(".inspector-live li button") !== null);
    assert.match(await view.text(), /gpt-4o, \d+ bytes, payments/);
    assert.deepEqual(await view.judge(), []);
    await view.page.click(".inspector-live li button");
    await view.page.waitForSelector(".inspector-results:not([hidden]):not([aria-busy]) .figure");
    assert.match(await view.page.$eval(".inspector-said", (line) => line.textContent), /^Turn 3 of 3/);
    const journal = await view.page.$eval(".inspector-journal", (line) => line.textContent);
    assert.match(journal, /^In the journal: 1 requests, (\d+) tokens received and \1 sent, 0 requests compacted, cost \$/);
    assertClean(view);
  } finally {
    await own.stop();
  }
});
