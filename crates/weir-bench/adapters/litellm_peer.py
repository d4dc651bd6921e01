"""LiteLLM: `trim_messages` and `compress`."""

import itertools
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import proxy
import tokens
from litellm import compress, token_counter
from litellm.utils import trim_messages


def own_limit(request, room_tokens):
    own = token_counter(model=request["model"], messages=request["messages"])
    return tokens.scaled(request, room_tokens, own)


def trim(request, room_tokens):
    messages = request["messages"]
    if tokens.fits(request, room_tokens):
        return None
    # It sends the last results on without counting them.
    results = itertools.takewhile(lambda message: message["role"] == "tool", reversed(messages))
    limit = own_limit(request, room_tokens) - tokens.of_messages(results)

    def shorten(limit):
        return {"messages": trim_messages(messages, request["model"], max_tokens=limit)}

    return tokens.fitting(room_tokens, limit, shorten)


def shorten_by_relevance(request, room_tokens):
    if tokens.fits(request, room_tokens):
        return None
    tools = request.get("tools") or []

    def shorten(limit):
        result = compress(request["messages"], request["model"], compression_trigger=limit)
        given = tools + result["tools"]
        return {"messages": result["messages"]} | ({"tools": given} if given else {})

    # Its tool is added to the request's.
    return tokens.fitting(room_tokens, own_limit(request, room_tokens), shorten, tools)


def shorten_with_empty_texts(request, room_tokens):
    """As the other, but with "" for a content of null, which it cannot take."""
    received = request["messages"]
    given = [{**message, "content": message.get("content") or ""} for message in received]
    changed = shorten_by_relevance({**request, "messages": given}, room_tokens)
    if changed is not None:
        kept = zip(changed["messages"], given, received, strict=True)
        changed["messages"] = [old if message == same else message for message, same, old in kept]
    return changed


if __name__ == "__main__":
    peers = {
        "litellm_trim": trim,
        "litellm_compress": shorten_by_relevance,
        "litellm_compress_texts": shorten_with_empty_texts,
    }
    proxy.serve(peers)
