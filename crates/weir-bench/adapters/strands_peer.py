"""Strands Agents: `SlidingWindowConversationManager` with its defaults.

It has no limit of tokens: it shortens the history when the model refuses it as too long. That refusal is played here
by the limit, until the conversation fits.
"""

import json
import types

import proxy
import tokens
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.types.exceptions import ContextWindowOverflowException

SESSIONS = proxy.Sessions()


def blocks(message):
    text = tokens.text_of(message.get("content"))
    if message["role"] == "tool":
        result = {"toolUseId": message["tool_call_id"], "status": "success", "content": [{"text": text}]}
        return [{"toolResult": result}]
    calls = [
        {"toolUse": {"toolUseId": call["id"], **call["function"]}} for call in message.get("tool_calls") or []
    ]
    return ([{"text": text}] if text else []) + calls


def read(messages):
    """Returns the library's messages, with all results of a turn in one, and the originals of their blocks."""
    found = []
    for message in messages:
        role = "user" if message["role"] == "tool" else message["role"]
        if message["role"] == "tool" and found and "toolResult" in found[-1]["content"][-1]:
            found[-1]["content"] += blocks(message)
            found[-1]["originals"].append(message)
        else:
            found.append({"role": role, "content": blocks(message), "originals": [message]})
    return found


def write(messages):
    """Returns OpenAI's messages: the original, with the new text of a shortened result."""
    written = []
    for message in messages:
        results = [block["toolResult"] for block in message["content"] if "toolResult" in block]
        if not results:
            written += message["originals"]
        for original, result in zip(message["originals"], results):
            text = "".join(part.get("text", "") for part in result["content"])
            same = text == tokens.text_of(original["content"])
            written.append(original if same else {**original, "content": text})
    return written


def compact(request, room_tokens):
    # An agent's system prompt is not among its messages.
    system = [message for message in request["messages"] if message["role"] in ("system", "developer")]
    others = [message for message in request["messages"] if message not in system]
    room = room_tokens - tokens.of_messages(system)
    agent = types.SimpleNamespace(messages=read(SESSIONS.resume(others, room_tokens)))
    manager = SlidingWindowConversationManager()
    manager.apply_management(agent)
    while tokens.of_messages(write(agent.messages)) > room:
        before = json.dumps(agent.messages)
        manager.reduce_context(agent, ContextWindowOverflowException("too long"))
        if json.dumps(agent.messages) == before:
            break
    state = write(agent.messages)
    SESSIONS.keep(others, room_tokens, state)
    return {"messages": system + state}


if __name__ == "__main__":
    proxy.serve({"strands_window": compact})
