"""An agent on OpenAI's Agents SDK, by Responses, that keeps its whole conversation itself."""

import sys
from pathlib import Path

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled


@function_tool
def read_part(part: int) -> str:
    """Reads a part."""
    return Path(f"part_{part}.txt").read_text()


set_tracing_disabled(True)
settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
agent = Agent(name="Reader", instructions="Read all parts.", tools=[read_part], model="gpt-5", model_settings=settings)
print(Runner.run_sync(agent, sys.argv[1], max_turns=200).final_output)
