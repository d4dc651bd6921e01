// Vercel's AI SDK: `pruneMessages`, one JSON line in (`messages`, `keep`), one line out (`messages`).
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const found = createRequire(`${process.argv[2]}/`).resolve('ai');
const { pruneMessages } = await import(pathToFileURL(found).href);

const text = content => typeof content === 'string' ? content : (content ?? []).map(part => part.text ?? '').join('');

// Returns the SDK's messages with the originals of their parts; results of one turn are one message.
const read = messages => {
  const names = new Map();
  const result = [];
  for (const original of messages) {
    const content = text(original.content);
    if (original.role === 'tool') {
      const part = {
        type: 'tool-result',
        toolCallId: original.tool_call_id,
        toolName: names.get(original.tool_call_id) ?? '',
        output: { type: 'text', value: content },
        original,
      };
      const last = result.at(-1);
      if (last?.role === 'tool') last.content.push(part);
      else result.push({ role: 'tool', content: [part] });
    } else if (original.role === 'assistant') {
      const calls = (original.tool_calls ?? []).map(call => {
        names.set(call.id, call.function.name);
        return { type: 'tool-call', toolCallId: call.id, toolName: call.function.name, input: {}, call };
      });
      result.push({ role: 'assistant', content: [...(content ? [{ type: 'text', text: content }] : []), ...calls], original });
    } else {
      result.push({ role: original.role, content, original });
    }
  }
  return result;
};

const write = messages => messages.flatMap(message => {
  if (message.role === 'tool') return message.content.map(part => part.original);
  if (message.role !== 'assistant') return [message.original];
  const calls = message.content.filter(part => part.type === 'tool-call').map(part => part.call);
  if (calls.length === (message.original.tool_calls ?? []).length) return [message.original];
  const { tool_calls, ...rest } = message.original;
  return [calls.length ? { ...rest, tool_calls: calls } : rest];
});

for await (const line of createInterface({ input: process.stdin })) {
  const { messages, keep } = JSON.parse(line);
  const pruned = pruneMessages({ messages: read(messages), toolCalls: `before-last-${keep}-messages` });
  console.log(JSON.stringify({ messages: write(pruned) }));
}
