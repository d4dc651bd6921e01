// Starts the scripted upstream and weir as processes, and reads the upstream's log. Knows nothing
// of the SDK. Readiness is detected from the processes' output; nothing sleeps.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const REPOSITORY = path.resolve(process.env.WEIR_TEST_ROOT ?? path.join(HERE, "../../.."));
const BINARIES = process.env.WEIR_TEST_BINARIES ?? path.join(REPOSITORY, "target", "debug");
export const CONFIG = path.join(REPOSITORY, "tests", "sdk", "weir.toml");
export const KEY = "sk-right";

// weir refuses unknown settings, and the SDK reads its own from the environment.
const FOREIGN = /^(WEIR_|OPENAI_|AZURE_OPENAI_|.*_PROXY$)/i;
const isForeign = (name) => FOREIGN.test(name);
const kept = Object.entries(process.env).filter(([name]) => !isForeign(name));
const ENVIRONMENT = Object.fromEntries(kept);
for (const name of Object.keys(process.env).filter(isForeign)) {
  delete process.env[name];
}

// Process that prints its address on one of its outputs.
class Process {
  static async start(program, flags, output, ready, more = {}) {
    if (!existsSync(program)) {
      throw new Error(`${program} is missing: cargo build --bin weir --example scripted_upstream`);
    }
    const self = new this();
    self.lines = [];
    const stdio = ["ignore", "ignore", "ignore"];
    stdio[output === "stdout" ? 1 : 2] = "pipe";
    self.child = spawn(program, flags, { stdio, env: { ...ENVIRONMENT, ...more } });
    self.exited = once(self.child, "exit");
    self.address = await new Promise((resolve, reject) => {
      // Reads to the end, so that the process never blocks on a full pipe.
      const reader = createInterface({ input: self.child[output] });
      reader.on("line", (line) => {
        self.lines.push(line);
        const match = ready.exec(line);
        if (match) resolve(match[1]);
      });
      reader.on("close", () => {
        reject(new Error(`${program} ended before it listened:\n${self.lines.join("\n")}`));
      });
    });
    self.baseURL = `http://${self.address}/v1`;
    return self;
  }

  // Stops it and returns its exit code.
  async stop() {
    this.child.kill("SIGTERM");
    const [code] = await this.exited;
    return code;
  }
}

export class Upstream extends Process {
  static launch(...flags) {
    const program = path.join(BINARIES, "examples", "scripted_upstream");
    return this.start(program, flags, "stdout", /listening on http:\/\/([\d.:]+)\/v1/);
  }

  async control(method, route, body) {
    const answer = await fetch(`http://${this.address}/scripted/${route}`, {
      method,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    return answer.json();
  }

  clear() {
    return this.control("DELETE", "log");
  }

  async requests() {
    return (await this.control("GET", "log?bodies=1")).requests;
  }

  waitEnded(count) {
    return this.control("GET", `wait?ended=${count}`);
  }

  queueFaults(...faults) {
    return this.control("POST", "faults", faults);
  }

  release() {
    return this.control("POST", "release", {});
  }
}

export class Weir extends Process {
  static launch(upstreamURL, config, more) {
    const flags = ["serve", "--listen", "127.0.0.1:0", "--store", ":memory:"];
    flags.push("--upstream", upstreamURL);
    if (config) flags.push("--config", config);
    const program = path.join(BINARIES, "weir");
    return this.start(program, flags, "stderr", /listening on ([\d.:]+),/, more);
  }
}
