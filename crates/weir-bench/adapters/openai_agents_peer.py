"""OpenAI Agents SDK: `ToolOutputTrimmer` with its defaults. It has no limit of tokens."""

import proxy
from agents.extensions import ToolOutputTrimmer
from agents.run_config import CallModelData, ModelInputData


def items(messages):
    """Returns the items of the Responses API for the messages, and for each output its message's number."""
    found, outputs = [], {}
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            outputs[len(found)] = number
            call_id = message["tool_call_id"]
            found.append({"type": "function_call_output", "call_id": call_id, "output": message["content"]})
            continue
        if message.get("content"):
            found.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls") or []:
            found.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return found, outputs


def trim(request, room_tokens):
    messages = request["messages"]
    given, outputs = items(messages)
    data = CallModelData(model_data=ModelInputData(input=given, instructions=None), agent=None, context=None)
    trimmed = ToolOutputTrimmer()(data).input
    for at, number in outputs.items():
        messages[number] = {**messages[number], "content": trimmed[at]["output"]}
    return {"messages": messages}


if __name__ == "__main__":
    proxy.serve({"openai_agents_trimmer": trim})
