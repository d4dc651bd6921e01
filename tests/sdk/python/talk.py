"""A tool-calling conversation as an application keeps it: every message is kept and sent again."""

import json

LIMIT_TOKENS = 2000
EXCHANGES = 12

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_gauge",
            "description": "Reads the water level at a place on the river.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Where to read"},
                    "days": {"type": "integer"},
                },
                "required": ["place"],
            },
        },
    }
]


def script(**answer):
    """Returns the header that sets the upstream's answer."""
    return {"x-upstream-script": json.dumps(answer)}


def calls_script(exchange):
    """Two calls at once."""
    calls = [
        {"name": "read_gauge", "arguments": {"place": f"gauge {exchange}-{side}", "days": exchange}}
        for side in ("left", "right")
    ]
    return script(tool_calls=calls)


def opening():
    return [{"role": "system", "content": "You watch the river and report its level."}]


def question(exchange):
    return {"role": "user", "content": f"How high is the water at gauge {exchange}?"}


def result(call):
    """Returns a tool's result of a typical length."""
    place = json.loads(call.function.arguments)["place"]
    rows = "\n".join(f"{place}: hour {hour} level {hour * 37 % 90} cm" for hour in range(12))
    return {"role": "tool", "tool_call_id": call.id, "content": rows}


def assert_calls(calls, exchange):
    """Asserts that the calls are those in the script."""
    told = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    sides = ("left", "right")
    assert told == [
        ("read_gauge", {"place": f"gauge {exchange}-{side}", "days": exchange}) for side in sides
    ]
    assert len({call.id for call in calls}) == 2


class Course:
    """Record of weir's report on each request, in order."""

    def __init__(self):
        self.actions = []

    def note(self, headers, prompt_tokens):
        assert prompt_tokens <= LIMIT_TOKENS
        assert int(headers["x-weir-limit-tokens"]) == LIMIT_TOKENS
        sent_tokens = int(headers["x-weir-sent-tokens"])
        received_tokens = int(headers["x-weir-received-tokens"])
        assert sent_tokens <= LIMIT_TOKENS
        assert prompt_tokens <= sent_tokens, "weir never counts less than there is"
        action = headers["x-weir-action"]
        assert (action == "pass") == (received_tokens == sent_tokens)
        self.actions.append(action)

    def check(self, upstream):
        """Asserts that the conversation exceeded the limit, and that no request to the upstream did."""
        assert self.actions[0] == "pass"
        assert "evict" in self.actions[-1].split("+")
        assert not any("fault" in action for action in self.actions)
        seen = upstream.requests()
        assert len(seen) == len(self.actions) == 2 * EXCHANGES
        for request in seen:
            assert request["status"] == 200
            assert request["prompt_tokens"] <= LIMIT_TOKENS
