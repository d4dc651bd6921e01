"""A loop on LangChain's client of OpenAI, streamed."""

import sys
from pathlib import Path

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def read_part(part: int) -> str:
    """Reads a part."""
    return Path(f"part_{part}.txt").read_text()


model = ChatOpenAI(model="gpt-4o").bind_tools([read_part])
messages = [SystemMessage("Read all parts."), HumanMessage(sys.argv[1])]
while True:
    answer = None
    for chunk in model.stream(messages):
        answer = chunk if answer is None else answer + chunk
    messages.append(answer)
    if not answer.tool_calls:
        break
    for call in answer.tool_calls:
        messages.append(ToolMessage(read_part.invoke(call["args"]), tool_call_id=call["id"]))
print(messages[-1].content)
