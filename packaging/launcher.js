#!/usr/bin/env node
// Starts the weir program that npm installed for this platform, and ends as it ends.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const platform = `${process.platform}-${process.arch}`;
const program = process.platform === "win32" ? "weir.exe" : "weir";

function find() {
  try {
    return require.resolve(`weir-proxy-${platform}/bin/${program}`);
  } catch {
    console.error(
      `weir: the package weir-proxy-${platform} is not installed. npm installs it with weir-proxy, ` +
        "unless --omit=optional (--no-optional) is set or weir is not built for this platform.",
    );
    process.exit(1);
  }
}

const child = spawn(find(), process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  // A terminal sends Ctrl-C to both; weir takes the second one for impatience.
  process.on(signal, () => {
    if (signal !== "SIGINT" || !process.stdin.isTTY) child.kill(signal);
  });
}
child.on("error", (error) => {
  console.error(`weir: cannot be started: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  process.exit(signal ? 128 + constants.signals[signal] : code);
});
