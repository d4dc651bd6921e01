// The inspector in a real browser: the sample, the slider, two policies, hostile texts, large
// conversations, the keyboard, and accessibility in both themes and on a narrow screen.
//
// `node --test tests/browser/inspector.mjs` needs puppeteer-core and axe-core, Chromium (CHROMIUM) and a
// built weir (WEIR). SHOTS names a folder for screenshots.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import puppeteer from "puppeteer-core";

const ROOT = new URL("../../", import.meta.url).pathname;
const WEIR = process.env.WEIR ?? join(ROOT, "target/debug/weir");
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let folder, weir, base, token, browser;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "weir-inspector-"));
  writeFileSync(join(folder, "weir.toml"), `
    [server]
    listen = "127.0.0.1:0"
    [upstream]
    url = "http://127.0.0.1:9/v1"
    [admin]
    listen = "127.0.0.1:0"
    token_file = "${folder}/admin.token"
    [store]
    path = "${folder}/weir.db"
  `);
  weir = spawn(WEIR, ["serve", "--config", join(folder, "weir.toml")], { stdio: ["ignore", "pipe", "pipe"] });
  base = await new Promise((resolve, reject) => {
    weir.on("exit", (code) => reject(new Error(`weir ended with ${code}`)));
    for (const stream of [weir.stdout, weir.stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        const found = line.match(/admin API listens on (127\.0\.0\.1:\d+)/);
        if (found) resolve(`http://${found[1]}`);
      });
    }
  });
  token = readFileSync(join(folder, "admin.token"), "utf8").trim();
  browser = await puppeteer.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
});

after(async () => {
  await browser?.close();
  weir?.kill();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** Opens a page that is logged in, and records everything that must not happen on it. */
async function opened(path = "#/inspector") {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("dialog", (dialog) => {
    faults.push(`dialog ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warn") faults.push(message.text());
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(`${base}/`) && !/^(data|blob):/.test(request.url())) faults.push(request.url());
  });
  await page.setViewport({ width: 1400, height: 1000 });
  await page.goto(`${base}/${path}`);
  await page.waitForSelector("input[type=password]");
  await page.type("input[type=password]", token);
  await page.click("button[type=submit]");
  const own = {
    page, faults,
    press: async (text) => {
      const found = await page.waitForSelector(`::-p-xpath(//button[normalize-space()=${JSON.stringify(text)}])`);
      await found.evaluate((button) => button.click());
    },
    shown: () => page.waitForSelector(".inspector-results:not([hidden]):not([aria-busy]) .figure"),
    file: async (name) => (await page.waitForSelector("input[type=file]")).uploadFile(name),
    set: (label, value) => page.evaluate((label_, value_) => {
      const own_ = [...document.querySelectorAll("label")].find((one) => one.textContent === label_);
      const control = document.getElementById(own_.htmlFor);
      control.value = value_;
      control.dispatchEvent(new Event("change"));
    }, label, value),
    text: (selector) => page.$eval(selector, (element) => element.textContent),
    /** Waits until a selector's text fits a pattern. */
    reads: (selector, pattern) => page.waitForFunction(
      (selector_, source) => new RegExp(source).test(document.querySelector(selector_)?.textContent ?? ""),
      {}, selector, pattern.source),
    async close() {
      assert.deepEqual(faults, []);
      await context.close();
    },
  };
  await page.waitForSelector(path.includes("sample=1") ? ".inspector-results" : ".inspector-source");
  return own;
}

async function assertAccessible(page, state) {
  // The page's policy refuses scripts from elsewhere, which injected ones are.
  const client = await page.createCDPSession();
  await client.send("Runtime.evaluate", { expression: AXE });
  const found = await page.evaluate(async () => (await window.axe.run(document)).violations
    .map((own) => `${own.id}: ${own.nodes.map((node) => node.target).join(" ")}`));
  assert.deepEqual(found, [], state);
}

async function shot(page, name) {
  if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`), fullPage: true });
}

test("the sample shows turns, policies and texts", async () => {
  const own = await opened();
  const { page } = own;
  await assertAccessible(page, "nothing opened");
  await own.press("Try the sample");
  await own.shown();
  await own.reads(".inspector-said", /Turn 28 of 28: [\d,]+ tokens received, [\d,]+ sent/);
  assert.match(page.url(), /sample=1&compare=zones&limit=40%25/);
  assert.deepEqual(await page.$$eval(".inspector-gauges h2", (all) => all.map((one) => one.textContent)),
    ["Window, default", "Window, zones"]);
  await assertAccessible(page, "two policies");
  await shot(page, "compare");

  const before = await own.text(".figure dd");
  await page.focus(".inspector-slider");
  for (let step = 0; step < 8; step += 1) await page.keyboard.press("ArrowLeft");
  await own.reads(".inspector-said", /^Turn 20 of 28/);
  await page.waitForFunction((text) => document.querySelector(".figure dd").textContent !== text, {}, before);
  await page.waitForFunction(() => location.hash.includes("turn=20"));
  await own.press("compaction ▶");
  await own.reads(".inspector-said", /^Turn 22 of 28.*compaction \(evict\) reads [\d,]+ tokens again, which costs \$0/);

  await own.set("Compare with", "");
  await page.waitForFunction(() => document.querySelectorAll(".inspector-gauges h2").length === 1);
  await own.shown();
  await page.focus(".inspector-canvas");
  for (let step = 0; step < 11; step += 1) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await own.reads(".inspector-detail h2", /^#10 tool read_file/);
  assert.match(await own.text(".inspector-verdict"), /In a note.*2,613 → 0 tokens.*Left out in compaction 1/);
  assert.ok((await page.$$(".inspector-texts mark")).length > 3, "quoted parts are marked");
  assert.equal(await page.evaluate(() => document.activeElement.closest(".inspector-detail") !== null), true);
  await assertAccessible(page, "an opened message");
  await shot(page, "opened");
  await own.press("Open note 1");
  await own.reads(".inspector-detail h2", /^Note 1/);
  await own.reads(".inspector-texts pre", /^\[weir: 11 earlier messages/);

  await own.press("List");
  await page.type("input[type=search]", "read_file note");
  await own.reads(".inspector-search .hint", /^\d+ of 54 messages/);
  await assertAccessible(page, "the list");
  await own.press("Picture");

  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
  await assertAccessible(page, "dark");
  await shot(page, "dark");
  await page.setViewport({ width: 390, height: 844 });
  await assertAccessible(page, "narrow");
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `${overflow} pixels stand out on a narrow screen`);
  await shot(page, "narrow");
  await own.close();
});

test("the address opens the sample with its choices, and leaving the page keeps them", async () => {
  const own = await opened("#/inspector?sample=1&policy=zones&limit=8k&turn=12");
  await own.shown();
  await own.reads(".inspector-said", /^Turn 12 of 28/);
  assert.deepEqual(await own.page.$$eval(".inspector-options select", (all) => all.slice(1).map((one) => one.value)),
    ["zones", ""]);
  await own.page.evaluate(() => { location.hash = "#/"; });
  await own.page.waitForFunction(() => document.querySelector("h1")?.textContent === "Overview");
  await own.page.evaluate(() => { location.hash = "#/inspector"; });
  await own.shown();
  await own.reads(".inspector-said", /^Turn 12 of 28/);
  assert.match(own.page.url(), /policy=zones&limit=8k&turn=12/);
  await own.close();
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
  const name = join(folder, "<img src=x onerror=alert(6)>.jsonl");
  writeFileSync(name, `${JSON.stringify(line)}\n${JSON.stringify({ ...line, id: `${evil} 2` })}\n`);
  const own = await opened();
  await own.file(name);
  await own.shown();
  await own.set("Limit (8k or 40%)", "30%");
  await own.page.waitForFunction(() => location.hash.includes("limit=30%25"));
  await own.shown();
  await own.page.focus(".inspector-canvas");
  for (let step = 0; step < 4; step += 1) await own.page.keyboard.press("ArrowDown");
  await own.page.keyboard.press("Enter");
  await own.reads(".inspector-texts pre", /<script>window\.pwned=1;alert\(1\)<\/script>.*⟨U\+202E⟩/);
  await own.press("List");
  await own.set("Model", evil);
  await own.shown();
  assert.equal(await own.page.evaluate(() => window.pwned), undefined);
  assert.equal(await own.page.$$eval("main img, main script, main svg, main iframe", (all) => all.length), 0);
  assert.doesNotMatch(own.page.url(), /level/);
  await own.close();
});

test("a trace of several conversations, and two thousand messages, open", async () => {
  const own = await opened();
  const trace = join(ROOT, "tests/data/traces/sample.jsonl.gz");
  assert.ok(existsSync(trace));
  await own.file(trace);
  await own.shown();
  assert.equal(await own.page.$eval(".inspector-options select", (one) => one.options.length), 10);
  const first = await own.text(".inspector-said");
  await own.set("Conversation", "3");
  await own.shown();
  assert.match(own.page.url(), /conversation=3/);
  assert.notEqual(await own.text(".inspector-said"), first);
  await own.press("Open another");
  const messages = [{ role: "system", content: "Be brief." }];
  for (let turn = 0; turn < 1000; turn += 1) {
    messages.push({ role: "user", content: `Question ${turn} of part_${turn}. ${"level rises ".repeat(turn % 40)}` });
    messages.push({ role: "assistant", content: `Answer ${turn}: part_${turn} holds. `.repeat(1 + (turn % 7)) });
  }
  const name = join(folder, "large.json");
  writeFileSync(name, JSON.stringify({ model: "gpt-4o", messages }));
  await own.file(name);
  await own.shown();
  await own.set("Limit (8k or 40%)", "30%");
  await own.reads(".figure:nth-child(3) dd", /^\d+in 1,00\d requests/);
  await own.page.evaluate(() => {
    const slider = document.querySelector(".inspector-slider");
    for (const turn of [900, 700, 500, 400]) {
      slider.value = String(turn);
      slider.dispatchEvent(new Event("input"));
    }
  });
  await own.reads(".inspector-said", /^Turn 400 of 100\d/);
  const width = await own.page.$eval(".inspector-canvas", (canvas) => canvas.width * canvas.height);
  assert.ok(width < 4_000_000, "the canvas is as large as its window, not as the conversation");
  await own.close();
});

test("mistakes are named where they are made", async () => {
  const own = await opened();
  await own.press("Inspect");
  await own.reads(".notice", /Paste a conversation first/);
  await own.page.type("textarea", "hello");
  await own.press("Inspect");
  await own.reads(".notice", /neither a request body/);
  // The browser logs refused requests by itself.
  own.faults.splice(0);
  await own.press("Open another");
  await own.press("Try the sample");
  await own.shown();
  await own.set("Limit (8k or 40%)", "half");
  await own.reads(".notice", /Write tokens, such as 8000/);
  await own.set("Limit (8k or 40%)", "60");
  await own.reads(".figure dd", /^refused/);
  await own.close();
});
