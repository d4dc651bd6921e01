// What the three protocols' checkers have in common: counts, frames of event streams, calls.

import { createHash } from "node:crypto";
import { countTokens } from "gpt-tokenizer/encoding/o200k_base";

// Longest tool name and form that OpenAI and Anthropic document.
const NAME = /^[a-zA-Z0-9_-]{1,128}$/;
// Tokens around each message.
const FRAME_TOKENS = 4;

const counted = new Map();

/** Tokens of a text by a public o200k tokenizer. */
export function tokens(text) {
  const key = text.length < 64 ? text : createHash("sha256").update(text).digest("base64");
  if (!counted.has(key)) counted.set(key, countTokens(text, { allowedSpecial: "all" }));
  return counted.get(key);
}

/** Tokens of the texts in a value: strings and numbers, without JSON's marks and names of members. */
export function textTokens(value) {
  if (typeof value === "string") return tokens(value);
  if (typeof value === "number") return tokens(String(value));
  if (value && typeof value === "object") {
    return Object.values(value).reduce((sum, inner) => sum + textTokens(inner), 0);
  }
  return 0;
}

/** Tokens of a tool's definition: all its texts, and the names of its parameters. */
export function toolTokens(tool) {
  const names = (value) => {
    if (!value || typeof value !== "object") return 0;
    const own = value.properties ? Object.keys(value.properties) : [];
    const inner = Object.values(value).reduce((sum, member) => sum + names(member), 0);
    return own.reduce((sum, name) => sum + tokens(name), inner);
  };
  return textTokens(tool) + names(tool);
}

export function framed(size) {
  return size + FRAME_TOKENS;
}

/** JSON with sorted members and without those that `drop` names. */
export function canonical(value, drop = []) {
  if (Array.isArray(value)) return `[${value.map((inner) => canonical(inner, drop)).join(",")}]`;
  if (value && typeof value === "object") {
    const members = Object.keys(value).filter((name) => !drop.includes(name)).sort();
    return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name], drop)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

export function digest(text) {
  return createHash("sha256").update(text).digest("base64url");
}

/** Reason for which a tool's name would be refused. */
export function nameFault(name) {
  return typeof name === "string" && NAME.test(name) ? undefined : `a tool named ${JSON.stringify(name)}`;
}

const SHELLS = ["exec_command", "shell_command", "shell", "local_shell", "Bash", "bash", "run_shell_command", "read_part"];

/** Picks the tool that runs a command among definitions of the form {name, schema}. */
export function shellOf(tools) {
  for (const name of SHELLS) {
    const found = tools.find((tool) => tool.name === name);
    if (found) return found;
  }
  return undefined;
}

/** Arguments with which a tool runs a command, by its schema. */
export function shellArguments({ schema }, command, part) {
  const values = {};
  const properties = schema?.properties ?? {};
  for (const name of ["cmd", "command"]) {
    if (properties[name]) values[name] = properties[name].type === "array" ? ["bash", "-c", command] : command;
  }
  for (const name of schema?.required ?? []) {
    if (name in values) continue;
    const { type } = properties[name] ?? {};
    if (type === "boolean") values[name] = false;
    else if (type === "integer" || type === "number") values[name] = name === "part" ? part : 10000;
    else values[name] = `Reads part ${part}`;
  }
  return values;
}

export function frame(data, name) {
  return `${name ? `event: ${name}\n` : ""}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;
}
