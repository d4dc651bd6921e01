// Starts weir, the scripted upstream and a browser, and watches the browser's pages: errors on the
// console, requests to other origins. Knows nothing of single pages; nothing sleeps.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import puppeteer from "puppeteer-core";

const HERE = path.dirname(fileURLToPath(import.meta.url));
export const REPOSITORY = path.resolve(process.env.WEIR_TEST_ROOT ?? path.join(HERE, "../.."));
const BINARIES = process.env.WEIR_TEST_BINARIES ?? path.join(REPOSITORY, "target", "debug");
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** Folder for pictures of the pages; none are taken without it. */
const PICTURES = process.env.WEIR_TEST_PICTURES;

/** weir refuses unknown settings, so none of the caller's get through. */
const FOREIGN = /^(WEIR_|OPENAI_|ANTHROPIC_|.*_PROXY$)/i;
const ENVIRONMENT = Object.fromEntries(Object.entries(process.env).filter(([name]) => !FOREIGN.test(name)));

/** A program whose output says when it is ready. */
class Program {
  static async start(name, flags, ready, env = {}) {
    const program = path.join(BINARIES, name);
    if (!existsSync(program)) {
      throw new Error(`${program} is missing: cargo build --bin weir --example scripted_upstream`);
    }
    const self = new this();
    self.lines = [];
    self.child = spawn(program, flags, { stdio: ["ignore", "pipe", "pipe"], env: { ...ENVIRONMENT, ...env } });
    self.exited = once(self.child, "exit");
    self.found = await new Promise((resolve, reject) => {
      for (const output of [self.child.stdout, self.child.stderr]) {
        createInterface({ input: output }).on("line", (line) => {
          self.lines.push(line);
          const found = ready.map((one) => self.lines.map((own) => one.exec(own)?.[1]).find(Boolean));
          if (found.every(Boolean)) resolve(found);
        });
      }
      self.exited.then(() => reject(new Error(`${name} ended before it was ready:\n${self.lines.join("\n")}`)));
    });
    return self;
  }

  async stop() {
    this.child.kill("SIGTERM");
    await this.exited;
  }
}

/** A weir with virtual keys and a dashboard, in front of the scripted upstream. */
export class Setting {
  static async start({ flags = [], admin = "", more = "" } = {}) {
    const self = new this();
    self.folder = mkdtempSync(path.join(tmpdir(), "weir-browser-"));
    self.upstream = await Program.start("examples/scripted_upstream", [], [/listening on (http\S+)/]);
    const config = path.join(self.folder, "weir.toml");
    writeFileSync(config, `
      [server]
      listen = "127.0.0.1:0"
      [admin]
      listen = "127.0.0.1:0"
      ${admin}
      [auth]
      mode = "keys"
      [store]
      path = "${path.join(self.folder, "weir.db")}"
      [upstream]
      url = "${self.upstream.found[0]}"
      api_key = "env:TEST_PROVIDER_KEY"
      [[limits]]
      model = "gpt-4o*"
      max_input_tokens = 4000
      ${more}`);
    const ready = [/listening on ([\d.:]+),/, /the admin API listens on ([\d.:]+)/];
    self.weir = await Program.start("weir", ["serve", "--config", config, ...flags], ready, { TEST_PROVIDER_KEY: "sk-provider" });
    [self.address, self.admin] = self.weir.found;
    self.dashboard = `http://${self.admin}`;
    self.token = readFileSync(path.join(self.folder, "admin.token"), "utf8").trim();
    self.config = config;
    return self;
  }

  /** Reads JSON from the admin API. */
  async read(route) {
    const answer = await fetch(`${this.dashboard}${route}`, { headers: { authorization: `Bearer ${this.token}` } });
    return answer.json();
  }

  /** Creates a virtual key; returns its secret. */
  async key(team) {
    const answer = await fetch(`${this.dashboard}/admin/v1/keys`, {
      method: "POST",
      headers: { authorization: `Bearer ${this.token}`, "content-type": "application/json" },
      body: JSON.stringify({ name: team, team }),
    });
    return (await answer.json()).secret;
  }

  /** Replaces a text in the configuration's file, and waits until weir has read it. */
  async reconfigure(from, to) {
    const before = (await this.read("/admin/v1/status")).reload?.at_ms;
    writeFileSync(this.config, readFileSync(this.config, "utf8").replace(from, to));
    for (;;) {
      const { reload } = await this.read("/admin/v1/status");
      if (reload && reload.at_ms !== before) return reload;
      if (this.weir.child.exitCode !== null) throw new Error("weir ended");
    }
  }

  /** Sends a conversation through weir with a virtual key. */
  chat(secret, messages, { model = "gpt-4o", headers = {} } = {}) {
    return fetch(`http://${this.address}/v1/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${secret}`, "content-type": "application/json", ...headers },
      body: JSON.stringify({ model, messages }),
    });
  }

  async stop() {
    await this.weir?.stop();
    await this.upstream?.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A browser whose pages are watched. */
export class Browser {
  contexts = [];

  static async start() {
    const executablePath = process.env.WEIR_TEST_BROWSER ?? BROWSERS.find((one) => existsSync(one));
    if (!executablePath) throw new Error("no Chromium: install it, or name it in WEIR_TEST_BROWSER");
    // The sandbox needs a user other than root.
    const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
    const self = new this();
    self.own = await puppeteer.launch({ executablePath, args, headless: true });
    return self;
  }

  /** Opens a page of the dashboard at `setting` in a session of its own. */
  async open(setting) {
    const context = await this.own.createBrowserContext();
    this.contexts.push(context);
    const page = await context.newPage();
    // Long, since the machine may have other work.
    page.setDefaultTimeout(120_000);
    await page.setViewport({ width: 1280, height: 900 });
    const watched = { errors: [], foreign: [] };
    page.on("console", (message) => {
      if (["error", "warn"].includes(message.type())) watched.errors.push(`${message.text()} ${message.location().url ?? ""}`);
    });
    page.on("pageerror", (error) => watched.errors.push(String(error.stack ?? error)));
    page.on("dialog", (dialog) => {
      watched.errors.push(`a script ran: ${dialog.message()}`);
      return dialog.dismiss();
    });
    page.on("request", (request) => {
      const { origin, protocol } = new URL(request.url());
      if (origin !== setting.dashboard && !["data:", "blob:", "about:"].includes(protocol)) watched.foreign.push(request.url());
    });
    return new View(page, setting, watched);
  }

  /** Ends all sessions, and with them their connections. */
  async rest() {
    await Promise.all(this.contexts.splice(0).map((context) => context.close()));
  }

  stop() {
    return this.own.close();
  }
}

/** A page of the dashboard. */
class View {
  constructor(page, setting, watched) {
    Object.assign(this, { page, setting, watched });
  }

  /** Goes to a page of the dashboard and waits for its heading. */
  async go(place, title) {
    await this.page.goto("about:blank");
    await this.page.goto(`${this.setting.dashboard}/#/${place}`);
    await this.ready(title);
  }

  /** Waits until a page has everything that it shows first. */
  ready(title) {
    return this.waitFor((wanted) => document.querySelector("h1")?.textContent === wanted
      && document.querySelector("main").getAttribute("aria-busy") === "false", title);
  }

  waitFor(condition, ...given) {
    return this.page.waitForFunction(condition, { timeout: 120_000 }, ...given);
  }

  /** Waits until the page shows a text. */
  shows(text) {
    return this.waitFor((wanted) => document.querySelector("main").innerText.includes(wanted), text);
  }

  text() {
    return this.page.$eval("main", (main) => main.innerText);
  }

  /** Clicks the button with this text or label: of the open dialog, if there is one. */
  async press(name) {
    const within = await this.page.$("dialog[open]") ? "//dialog" : "";
    const path = `${within}//button[normalize-space()="${name}" or @aria-label="${name}"]`;
    const button = await this.page.waitForSelector(`::-p-xpath(${path})`, { visible: true });
    await button.click();
  }

  /** Types into the field with this label. */
  async fill(label, text) {
    const id = await this.page.evaluate((wanted) => [...document.querySelectorAll("label")]
      .findLast((own) => own.textContent === wanted)?.htmlFor, label);
    const input = await this.page.$(`[id="${id}"]`);
    await input.click({ count: 3 });
    await input.type(text);
  }

  async logIn() {
    await this.page.goto(this.setting.dashboard);
    await this.page.waitForSelector("input[name=token]");
    await this.page.type("input[name=token]", this.setting.token);
    await this.press("Log in");
    await this.ready("Overview");
  }

  /** Sets the theme and the width of the window. */
  async look(theme, width) {
    await this.page.setViewport({ width, height: 900 });
    await this.page.evaluate((wanted) => localStorage.setItem("weir-theme", wanted), theme);
  }

  /** Returns the violations that axe-core finds, and whether the page is wider than its window. */
  async judge() {
    // The policy of the page allows no injected script element; the debugger's scripts may run.
    await this.page.evaluate(AXE);
    return this.page.evaluate(async () => {
      const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
      const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
      return [
        ...violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`),
        ...(wide ? ["the page scrolls sideways"] : []),
      ];
    });
  }

  /** Takes a picture, if they are wanted. */
  async picture(name) {
    if (PICTURES) await this.page.screenshot({ path: path.join(PICTURES, `${name}.png`) });
  }
}
