// A loop on Vercel's AI SDK, by Responses, that keeps its whole conversation itself.

import { readFileSync } from "node:fs";

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
const read_part = tool({
  description: "Reads a part.",
  inputSchema: z.object({ part: z.number() }),
  execute: async ({ part }) => readFileSync(`part_${part}.txt`, "utf8"),
});
const { text } = await generateText({
  model: openai("gpt-5"),
  system: "Read all parts.",
  prompt: process.argv[2],
  tools: { read_part },
  stopWhen: stepCountIs(200),
  providerOptions: { openai: { store: false, include: ["reasoning.encrypted_content"] } },
});
console.log(text);
