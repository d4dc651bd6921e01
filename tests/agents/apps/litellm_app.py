"""A loop on LiteLLM's client."""

import json
import sys
from pathlib import Path

import litellm

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_part",
            "description": "Reads a part.",
            "parameters": {"type": "object", "properties": {"part": {"type": "integer"}}, "required": ["part"]},
        },
    }
]

messages = [{"role": "system", "content": "Read all parts."}, {"role": "user", "content": sys.argv[1]}]
while True:
    answer = litellm.completion(model="openai/gpt-4o", messages=messages, tools=TOOLS).choices[0].message
    messages.append(answer.model_dump())
    if not answer.tool_calls:
        break
    for call in answer.tool_calls:
        part = json.loads(call.function.arguments)["part"]
        text = Path(f"part_{part}.txt").read_text()
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
print(messages[-1]["content"])
