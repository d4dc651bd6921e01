// Rules for what names an earlier block: servers' tools, tools that are loaded when they are needed,
// approvals. And texts of agents that change with each request.

const SERVER_RESULTS = { advisor: "advisor_tool_result", web_search: "web_search_tool_result", tool_search_tool_regex: "tool_search_tool_result" };

export const SERVER_BLOCKS = Object.values(SERVER_RESULTS);

/** System text without the block that a client counts its requests in; no part of what is signed. */
export function steadySystem(blocks) {
  return blocks.filter(({ text }) => !text?.startsWith("x-anthropic-billing-header"));
}

/** Instructions without the line that changes with each request. */
export function steadyInstructions(text) {
  return (text ?? "").replace(/^Session counter \d+\.\n/, "");
}

/** Messages: each server's call has a result in its message or a later one, each call is loaded. */
export function blocksFault(body) {
  const tools = new Map((body.tools ?? []).map((tool) => [tool.name, tool]));
  const waiting = new Map();
  const loaded = new Set();
  for (const [place, { role, content }] of body.messages.entries()) {
    const blocks = typeof content === "string" ? [{ type: "text" }] : content;
    for (const block of blocks) {
      const wrong = blockFault(block, tools, waiting, loaded);
      if (wrong) return `messages.${place}: ${wrong}`;
    }
    const goesOn = role === "assistant" && place > 0 && [...waiting.values()].some((called) => called.place < place);
    if (goesOn) return `messages.${place}: ${[...waiting.keys()].join(", ")} was found without its result`;
    for (const called of waiting.values()) called.place ??= place;
  }
  return undefined;
}

function blockFault(block, tools, waiting, loaded) {
  if (block.type === "server_tool_use") waiting.set(block.id, { result: SERVER_RESULTS[block.name] });
  if (SERVER_BLOCKS.includes(block.type)) {
    if (waiting.get(block.tool_use_id)?.result !== block.type) return `unexpected tool_use_id in ${block.type} blocks: ${block.tool_use_id}`;
    waiting.delete(block.tool_use_id);
  }
  for (const { tool_name: name } of block.content?.tool_references ?? []) {
    if (!tools.has(name)) return `tool_reference ${name} not found in tools`;
    loaded.add(name);
  }
  const isMissing = block.type === "tool_use" && (!tools.has(block.name) || (tools.get(block.name).defer_loading && !loaded.has(block.name)));
  return isMissing ? `a call of ${block.name}, which is not loaded` : undefined;
}

/** Messages: the tools that are in the prompt. */
export function loadedTools(body) {
  const references = body.messages.flatMap(({ content }) => (typeof content === "string" ? [] : content.flatMap((block) => block.content?.tool_references ?? [])));
  const loaded = new Set(references.map(({ tool_name: name }) => name));
  return (body.tools ?? []).filter((tool) => !tool.defer_loading || loaded.has(tool.name));
}

/** Responses: approvals have a request, searches for tools an output, deferred calls a load. */
export function itemsFault(body) {
  const deferred = new Set((body.tools ?? []).filter((tool) => tool.defer_loading).map(({ name }) => name));
  const requested = new Set();
  let searching = false;
  for (const [place, item] of body.input.entries()) {
    if (searching !== (item.type === "tool_search_output")) return `input[${place}]: a search for tools without its other half`;
    searching = item.type === "tool_search_call";
    if (item.type === "mcp_approval_request") requested.add(item.id);
    if (item.approval_request_id && !requested.has(item.approval_request_id)) return `input[${place}]: No approval request found with id ${item.approval_request_id}.`;
    for (const tool of item.type === "tool_search_output" ? item.tools : []) deferred.delete(tool.name);
    if (item.type === "function_call" && deferred.has(item.name)) return `input[${place}]: a call of ${item.name}, which is not loaded`;
  }
  return searching ? "a search for tools without its output" : undefined;
}
