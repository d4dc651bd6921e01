"""LangChain: `trim_messages`, `SummarizationMiddleware`, `ClearToolUsesEdit`."""

import copy

import proxy
import tokens
from langchain.agents.middleware import ClearToolUsesEdit, SummarizationMiddleware
from langchain_core.messages import (
    RemoveMessage,
    convert_to_messages,
    convert_to_openai_messages,
    trim_messages,
)
from langchain_openai import ChatOpenAI

SESSIONS = proxy.Sessions()


def read(messages):
    """Returns LangChain's messages, each with its number as its id and the original as it was received."""
    converted = convert_to_messages(messages)
    for number, (message, original) in enumerate(zip(converted, messages)):
        message.id = str(number)
        message.additional_kwargs["original"] = (copy.deepcopy(message.content), original)
    return converted


def write(message):
    """Returns the original if its content is unchanged, and otherwise the original with the new content."""
    content, original = message.additional_kwargs.get("original") or (None, None)
    if original is None:
        return convert_to_openai_messages(message)
    return original if message.content == content else {**original, "content": message.content}


def count(messages):
    return sum(tokens.of_message(write(message)) for message in messages)


def trim(request, room_tokens):
    kept = trim_messages(
        read(request["messages"]),
        max_tokens=room_tokens,
        token_counter=count,
        strategy="last",
        start_on="human",
        end_on=("human", "tool"),
        include_system=True,
    )
    return {"messages": [write(message) for message in kept]}


def clear_tools(request, room_tokens):
    messages = read(request["messages"])
    edit = ClearToolUsesEdit(trigger=room_tokens)
    edit.apply(messages, count_tokens=count)
    return {"messages": [write(message) for message in messages]}


def summarize(request, room_tokens):
    received = request["messages"]
    # An agent's system prompt is not part of the state that the middleware sees.
    system = [message for message in received if message["role"] in ("system", "developer")]
    state = SESSIONS.resume([message for message in received if message not in system], room_tokens)
    room = room_tokens - tokens.of_messages(system)
    middleware = SummarizationMiddleware(
        ChatOpenAI(model=request["model"], base_url=proxy.upstream_url()),
        trigger=("tokens", max(1, room * 8 // 10)),
        keep=("tokens", max(1, room * 3 // 10)),
        token_counter=count,
    )
    update = middleware.before_model({"messages": (messages := read(state))}, None)
    if update is not None:
        messages = [message for message in update["messages"] if not isinstance(message, RemoveMessage)]
    state = [write(message) for message in messages]
    SESSIONS.keep([message for message in received if message not in system], room_tokens, state)
    return {"messages": system + state}


if __name__ == "__main__":
    proxy.serve({"langchain_trim": trim, "langchain_clear": clear_tools, "langchain_summary": summarize})
