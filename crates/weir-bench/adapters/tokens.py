"""Sizes of messages as FitBench counts them: o200k_base, 4 tokens a message, 8 a call."""

import functools
import json

import tiktoken

MESSAGE_TOKENS = 4
CALL_TOKENS = 8


@functools.cache
def encoding():
    return tiktoken.get_encoding("o200k_base")


def encode(text):
    return encoding().encode_ordinary(text)


@functools.lru_cache(maxsize=50_000)
def of_text(text):
    return len(encode(text))


def text_of(content):
    """Returns the text of a message's content, in either form."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def of_message(message):
    count = MESSAGE_TOKENS + of_text(text_of(message.get("content")))
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        count += CALL_TOKENS + of_text(function.get("name") or "")
        count += of_text(function.get("arguments") or "")
    return count


def of_messages(messages):
    return sum(of_message(message) for message in messages)


def of_tools(tools):
    """Returns the tokens of the tools' JSON: about the size that FitBench counts, and seldom less."""
    return of_text(json.dumps(tools, ensure_ascii=False, separators=(",", ":"))) if tools else 0


def fits(request, room_tokens):
    return of_messages(request["messages"]) <= room_tokens


def scaled(request, room_tokens, own_count, margin=0.95):
    """Returns the limit in a library's own count: the room, by the ratio of the two counts of the same messages."""
    return max(1, int(room_tokens * own_count / of_messages(request["messages"]) * margin))


def fitting(room_tokens, limit, shorten, given_tools=()):
    """Returns what the library makes of the largest limit whose result fits: `limit`, then 5 % less each time, down
    to a quarter. `shorten` returns changed members of the request for a limit. Tools that it adds to the given ones take of the room, too."""
    least = limit // 4
    while True:
        changed = shorten(max(1, limit))
        size = of_messages(changed["messages"]) + of_tools((changed.get("tools") or [])[len(given_tools) :])
        if size <= room_tokens or limit <= least:
            return changed
        limit = limit * 95 // 100
