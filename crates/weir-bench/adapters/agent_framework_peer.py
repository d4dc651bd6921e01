"""Microsoft Agent Framework: `ContextWindowCompactionStrategy`."""

import asyncio

import proxy
import tokens
from agent_framework import Content, ContextWindowCompactionStrategy, Message, apply_compaction
from agent_framework._compaction import EXCLUDED_KEY, _serialize_message

SESSIONS = proxy.Sessions()


class Tokenizer:
    """Counts a message in the library's own JSON form with o200k_base, which is more than the message itself."""

    def count_tokens(self, text):
        return tokens.of_text(text)


def read(message):
    """Returns the library's message, with the original among its properties."""
    if "agent_framework" in message:
        return Message.from_dict(message["agent_framework"])
    content = tokens.text_of(message.get("content"))
    contents = [Content.from_text(content)] if content else []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        contents.append(
            Content.from_function_call(call["id"], function["name"], arguments=function["arguments"])
        )
    if message["role"] == "tool":
        contents = [Content.from_function_result(message["tool_call_id"], result=content)]
    return Message(message["role"], contents, additional_properties={"original": message})


def write(message):
    original = message.additional_properties.get("original")
    return original or {"role": str(message.role), "content": message.text}


def compact(request, room_tokens):
    state = [read(message) for message in SESSIONS.resume(request["messages"], room_tokens)]
    tokenizer = Tokenizer()
    sent = [message for message in state if not message.additional_properties.get(EXCLUDED_KEY)]
    own = sum(tokenizer.count_tokens(_serialize_message(message)) for message in sent)
    limit = tokens.scaled({**request, "messages": [write(message) for message in sent]}, room_tokens, own, 1)
    strategy = ContextWindowCompactionStrategy(
        max_context_window_tokens=limit, max_output_tokens=0, tokenizer=tokenizer
    )
    included = asyncio.run(apply_compaction(state, strategy=strategy, tokenizer=tokenizer))
    SESSIONS.keep(
        request["messages"], room_tokens, [{"agent_framework": message.to_dict()} for message in state]
    )
    return {"messages": [write(message) for message in included]}


if __name__ == "__main__":
    proxy.serve({"agent_framework": compact})
