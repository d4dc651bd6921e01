"""Vercel's AI SDK: `pruneMessages`, in Node.

It counts messages and has no limit. Calls are pruned if the conversation is above the limit, before the last N messages
with the largest N that fits, and at least the 2 of its documentation.
"""

import json
import os
import pathlib
import subprocess

import proxy
import tokens

SCRIPT = pathlib.Path(__file__).with_name("ai_sdk.mjs")
NODE = subprocess.Popen(
    ["node", SCRIPT, os.path.join(os.environ["PEERS_FOLDER"], "ai-sdk")],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
)


def pruned(messages, keep):
    NODE.stdin.write(json.dumps({"messages": messages, "keep": keep}) + "\n")
    NODE.stdin.flush()
    return json.loads(NODE.stdout.readline())["messages"]


def prune(request, room_tokens):
    if tokens.fits(request, room_tokens):
        return None
    messages = request["messages"]
    low, high = 2, len(messages)
    while low < high:
        middle = (low + high + 1) // 2
        if tokens.of_messages(pruned(messages, middle)) <= room_tokens:
            low = middle
        else:
            high = middle - 1
    return {"messages": pruned(messages, low)}


if __name__ == "__main__":
    proxy.serve({"ai_sdk_prune": prune})
