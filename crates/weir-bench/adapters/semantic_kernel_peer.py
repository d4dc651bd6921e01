"""Semantic Kernel: `ChatHistoryTruncationReducer` and `ChatHistorySummarizationReducer`.

Both count messages. So they are called if the conversation is above the limit, with the largest count that leaves at
most `LOW` of the room: they replace the history, and the next requests need room to grow.
"""

import asyncio

import proxy
import tokens
from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.contents import (
    ChatHistorySummarizationReducer,
    ChatHistoryTruncationReducer,
    ChatMessageContent,
    FunctionCallContent,
    FunctionResultContent,
    TextContent,
)
from semantic_kernel.contents.history_reducer.chat_history_reducer_utils import SUMMARY_METADATA_KEY

SESSIONS = proxy.Sessions()
LOW = 0.6
SUMMARY = "semantic_kernel_summary"


def read(messages):
    """Returns the library's messages, each with its original. A summary is marked as the library marks it."""
    found, names = [], {}
    for message in messages:
        content = tokens.text_of(message.get("content"))
        parts = [TextContent(text=content)] if content or message["role"] != "assistant" else []
        for call in message.get("tool_calls") or []:
            names[call["id"]] = call["function"]["name"]
            parts.append(FunctionCallContent(id=call["id"], **call["function"]))
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            parts = [FunctionResultContent(id=call_id, name=names.get(call_id), result=content)]
        metadata = {"original": message}
        if message.get(SUMMARY):
            metadata[SUMMARY_METADATA_KEY] = True
        found.append(ChatMessageContent(role=message["role"], items=parts, metadata=metadata))
    return found


def write(messages):
    def one(message):
        original = message.metadata.get("original")
        return original or {"role": message.role.value, "content": message.content, SUMMARY: True}

    return [one(message) for message in messages]


def truncated(messages, count):
    reducer = ChatHistoryTruncationReducer(target_count=count, messages=messages)
    reduced = asyncio.run(reducer.reduce())
    return (reduced or reducer).messages


def scaled_count(messages, room_tokens):
    """Returns the largest count that leaves at most `LOW` of the room, or else the one that leaves least. A count that
    leaves the system prompt alone is out of the question."""
    least = (float("inf"), len(messages))
    for count in range(len(messages) - 1, 0, -1):
        kept = write(truncated(messages, count))
        size = tokens.of_messages(kept)
        if all(message["role"] in ("system", "developer") for message in kept):
            break
        if size <= room_tokens * LOW:
            return count
        least = min(least, (size, count))
    return least[1]


def stateful(request, room_tokens, reduce):
    state = SESSIONS.resume(request["messages"], room_tokens)
    if tokens.of_messages(state) > room_tokens:
        messages = read(state)
        state = write(reduce(messages, scaled_count(messages, room_tokens)))
    SESSIONS.keep(request["messages"], room_tokens, state)
    sent = [{key: value for key, value in message.items() if key != SUMMARY} for message in state]
    return {"messages": sent}


def truncate(request, room_tokens):
    return stateful(request, room_tokens, truncated)


def summarize(request, room_tokens):
    async def run(messages, count):
        client = AsyncOpenAI(base_url=proxy.upstream_url())
        service = OpenAIChatCompletion(ai_model_id=request["model"], async_client=client)
        reducer = ChatHistorySummarizationReducer(service=service, target_count=count, messages=messages)
        return (await reducer.reduce() or reducer).messages

    return stateful(request, room_tokens, lambda messages, count: asyncio.run(run(messages, count)))


if __name__ == "__main__":
    proxy.serve({"semantic_kernel_truncation": truncate, "semantic_kernel_summary": summarize})
