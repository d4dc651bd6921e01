// Items of the picture: the received messages, and those sent under each policy, in order.

import { count } from "../format.js";
import { FATES } from "./fates.js";

/** Turns plans into the items that the picture shows. */
export function pictured(sides) {
  const first = sides[0].plan;
  const overhead = (side) => ({ overhead: true, side, tokens: first.window.overhead_tokens, fate: "overhead",
    label: "tools and schemas", short: "tools", words: "", hint: `Tools, schemas and the start of the answer: ${count(first.window.overhead_tokens)} tokens` });
  const item = (plan, row, side) => {
    const fate = plan.appearances[row.index];
    const isReceived = side === undefined;
    return {
      message: row.index, side, fate, tokens: isReceived ? row.received_tokens : row.sent_tokens,
      label: `#${row.index} ${row.tool ?? row.role}`, short: `#${row.index}`, words: row.first_words,
      hint: `#${row.index} ${row.role}${row.tool ? ` ${row.tool}` : ""}: ${count(row.received_tokens)} → ` +
        `${count(row.sent_tokens)} tokens\n${FATES[fate][0]}: ${row.why_text}\n${row.first_words}`,
    };
  };
  const notes = (plan, side, message, isBefore) => plan.notes
    .filter((note) => note.message === message && note.place.includes("before") === isBefore)
    .map((note) => ({ note: note.number, side, fate: "note", tokens: note.sent_tokens, label: `note ${note.number}`,
      short: `note ${note.number}`,
      words: note.first_words, hint: `Note ${note.number}: ${count(note.sent_tokens)} tokens for ` +
        `${count(note.left_out_messages)} messages\n${note.first_words}` }));
  const withOverhead = (side, items) => (first.window.overhead_tokens > 20 ? [overhead(side), ...items] : items);
  return {
    receivedTokens: first.window.received_tokens,
    received: withOverhead(undefined, first.messages.map((row) => item(first, row, undefined))),
    sides: sides.map(({ policy, plan }, side) => ({
      policy,
      sentTokens: plan.window.sent_tokens,
      fates: plan.appearances,
      notes: plan.messages.map((row) => row.why.note),
      items: withOverhead(side, plan.messages.flatMap((row) => [
        ...notes(plan, side, row.index, true),
        ...(row.fate === "gone" ? [] : [item(plan, row, side)]),
        ...notes(plan, side, row.index, false),
      ])),
    })),
  };
}
