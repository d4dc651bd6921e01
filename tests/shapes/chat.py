"""Chat completions: conversations of agents, and a provider's rules for them."""

import json
import random

from common import FRAME_TOKENS, Conversation, Writer, canonical, finish, length, media_most, opaque_fault, texts, tool_schema

PATH = "/v1/chat/completions"
MODELS = ["gpt-4o", "gpt-4.1", "qwen3-coder", "deepseek-chat", "claude-sonnet-4-5"]
SHAPES = [
    "plain", "parallel", "late_outputs", "late_system", "volatile_head", "opaque", "same_ids", "empty_ids", "reasoning", "user_runs",
    "behind_results", "cache_marks", "unknown_parts", "legacy", "pins_of_head", "early_outputs",
]  # fmt: skip
# Not text: they count by other rules, and here as nothing.
MEDIA = ("data", "url", "file_data", "signature", "encrypted_content", "b64_json")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def size(message):
    return FRAME_TOKENS + texts({name: value for name, value in message.items() if name not in ("role", "id")}, MEDIA + ("type",))


def upper(message):
    """What a message may count as at most: with room for media."""
    return size(message) + media_tokens(message)


def media_tokens(value):
    if isinstance(value, list):
        return sum(media_tokens(inner) for inner in value)
    if not isinstance(value, dict):
        return 0
    total = sum(media_tokens(inner) for inner in value.values() if isinstance(inner, (list, dict)))
    for name in MEDIA:
        if isinstance(value.get(name), str):
            total += media_most(value[name])
    return total


def generate(seed, shapes=None, requests=6):
    chance = random.Random(f"chat {seed}")
    picked = chance.sample(SHAPES, chance.choice([1, 1, 2, 3]))
    # The source of chance is used alike whether or not shapes are given.
    picked = shapes or picked
    made = Conversation("chat", seed, chance.choice(MODELS), tuple(picked))
    made.facts["is_lenient"] = "late_outputs" in picked or "early_outputs" in picked
    writer = ChatWriter(chance, made)
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": writer.text(5, 30), "parameters": tool_schema(writer)}}
        for n in range(chance.randint(1, 6))
    ]
    made.head = {"model": made.model, "tools": tools}
    head_role = chance.choice(["system", "system", "developer"])
    first = writer.text(30, 200)
    if chance.random() < 0.9 or "volatile_head" in picked:
        writer.add({"role": head_role, "content": first})
        if "volatile_head" in picked:
            made.facts["volatile"] = first
    writer.add({"role": "user", "content": writer.text(10, 80)})
    for step in range(length(chance, picked)):
        writer.step(step)
    writer.settle()
    writer.cut()
    head_size = texts(tools) + size(made.log[0])
    return finish(writer, size, upper, head_size, requests)


class ChatWriter(Writer):
    def __init__(self, chance, made):
        super().__init__(chance, made)
        self.waiting = []

    def has(self, shape):
        return shape in self.made.shapes

    def call_id(self, place):
        if self.has("empty_ids"):
            return ""
        if self.has("same_ids"):
            return f"call_{place}"
        return self.id("call")

    def call(self, place=0):
        arguments = json.dumps({self.chance.choice(["path", "command", "query"]): self.text(2, 20)})
        name = self.chance.choice(self.made.head["tools"])["function"]["name"]
        return {"id": self.call_id(place), "type": "function", "function": {"name": name, "arguments": arguments}}

    def output(self, call):
        content = self.result()
        if self.chance.random() < 0.15:
            content = [{"type": "text", "text": content}, {"type": "text", "text": self.text(3, 20)}]
        return {"role": "tool", "tool_call_id": call["id"], "content": content}

    def assistant(self, calls):
        message = {"role": "assistant", "content": self.chance.choice([None, "", self.text(5, 40)]), "tool_calls": calls}
        if message["content"] == "" and self.chance.random() < 0.5:
            message["content"] = self.text(5, 30)
        if self.has("reasoning"):
            if self.made.model.startswith("deepseek"):
                message["reasoning_content"] = self.text(10, 60)
            else:
                message["reasoning_details"] = [{"type": "reasoning.text", "text": self.text(10, 60), "signature": self.sealed(100, 300), "index": 0}]
        return message

    def reminder(self):
        role = self.chance.choice(["system", "developer"])
        return {"role": role, "content": f"Reminder: {90_000 - 700 * self.number()} tokens are left. {self.made.seed} Keep to the plan of the user."}

    def late_call(self, step):
        """A call that is answered after other calls and their results."""
        call = {**self.call(), "id": self.id("bg")}
        begin = self.add(self.assistant([call]))
        self.waiting.append((step + self.chance.randint(1, 3), begin, call))

    def cut(self):
        """Nothing is sent while the output of a call is due."""
        if not self.waiting:
            super().cut()

    def settle(self, step=None):
        for due, begin, call in list(self.waiting):
            if step is None or due <= step:
                self.add(self.output(call))
                self.made.spans.append((begin, len(self.made.log)))
                self.waiting.remove((due, begin, call))

    def user_parts(self):
        parts = [{"type": "text", "text": self.text(5, 40)}]
        kind = self.chance.choice(["image", "pdf", "audio"]) if self.has("opaque") else None
        if kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{self.png()}", "detail": "low"}})
        elif kind == "pdf":
            data = f"data:application/pdf;base64,{self.pdf(self.chance.randint(1, 4))}"
            parts.append({"type": "file", "file": {"filename": "plan.pdf", "file_data": data}})
        elif kind == "audio":
            parts.append({"type": "input_audio", "input_audio": {"data": self.sealed(4000, 30000), "format": "wav"}})
        if self.has("unknown_parts"):
            shape = self.chance.choice(["media", "document", "video"])
            parts.append({"type": shape, shape: {"mime_type": "application/octet-stream", "data": self.sealed(2000, 40000)}})
        return parts

    def step(self, step):
        chance = self.chance
        dice = chance.random()
        if self.has("late_outputs") and dice < 0.35:
            self.late_call(step)
            calls = [self.call()]
            self.add(self.assistant(calls), *[self.output(call) for call in calls])
        elif self.has("early_outputs") and dice < 0.35:
            # One of several parallel results comes after the next exchange.
            calls = [self.call(place) for place in range(2)]
            for call in calls:
                call["id"] = self.id("call")
            begin = self.add(self.assistant(calls), self.output(calls[0]))
            self.waiting.append((step + chance.choice([1, 1, 4]), begin, calls[1]))
        elif self.has("legacy") and dice < 0.4:
            name = self.made.head["tools"][0]["function"]["name"]
            call = {"name": name, "arguments": json.dumps({"path": self.text(2, 6)})}
            self.add({"role": "assistant", "content": None, "function_call": call}, {"role": "function", "name": name, "content": self.result()})
        elif dice < 0.75:
            calls = [self.call(place) for place in range(chance.randint(2, 5) if self.has("parallel") else chance.choice([1, 1, 1, 2]))]
            outputs = [self.output(call) for call in calls]
            if not self.has("empty_ids") and chance.random() < 0.3:
                chance.shuffle(outputs)
            self.add(self.assistant(calls), *outputs)
            if self.has("behind_results") and chance.random() < 0.5:
                self.add({"role": "user", "content": f"<system-reminder>Did you read the list? {self.text(5, 30)}</system-reminder>"})
        else:
            self.settle()
            self.add({"role": "assistant", "content": self.text(10, 120)})
            content = self.text(5, 60)
            if (self.has("opaque") or self.has("unknown_parts")) and chance.random() < 0.6:
                content = self.user_parts()
            elif self.has("cache_marks"):
                content = [{"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}]
            self.add({"role": "user", "content": content})
            if self.has("user_runs"):
                self.add({"role": "user", "content": self.text(3, 30), "name": "second"})
        self.settle(step)
        if not self.waiting:
            if self.has("late_system") or (self.has("pins_of_head") and chance.random() < 0.1):
                self.add(self.reminder())
            self.cut()


def body(made, number):
    log = made.log[: made.cuts[number]]
    if "volatile" in made.facts:
        log = [{**log[0], "content": f"Request {number * 7919 + 13}, the clock shows 12:{number:02d}.\n{made.facts['volatile']}"}, *log[1:]]
    if "cache_marks" in made.shapes:
        log = [unmarked(message) for message in log[:-1]] + log[-1:]
    return {**made.head, "messages": log, "stream": made.streams[number], "max_tokens": 500}


def unmarked(message):
    if not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [{name: value for name, value in part.items() if name != "cache_control"} for part in message["content"]]}


def count(body):
    return texts(body.get("tools", []), ("type",)) + sum(size(message) for message in body["messages"])


def most(body):
    return count(body) + media_tokens(body["messages"])


def judge(body, made, is_sent=True):
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "no messages"
    if "weir" in body:
        return "a member weir"
    names = {tool["function"]["name"] for tool in body.get("tools", [])}
    for place, message in enumerate(messages):
        wrong = message_fault(message, names)
        if wrong:
            return f"messages[{place}]: {wrong}"
    wrong = lenient_fault(messages) if made.facts["is_lenient"] else order_fault(messages)
    if wrong:
        return wrong
    if all(message["role"] in ("system", "developer") for message in messages):
        return "no message but the system's"
    return opaque_fault(messages, made.opaque)


def message_fault(message, names):
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        return f"a role {role}"
    if "weir" in message:
        return "a member weir"
    for call in message.get("tool_calls", []):
        if call["function"]["name"] not in names:
            return f"a call of {call['function']['name']}, which no tool declares"
        try:
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return "arguments that are no object"
        except ValueError:
            return "arguments that are no JSON"
    if "tool_calls" in message and (role != "assistant" or not message["tool_calls"]):
        return "calls that are empty or not the assistant's"
    if content is None:
        return None if role == "assistant" and (message.get("tool_calls") or message.get("function_call")) else "no content"
    if isinstance(content, str):
        return None
    if not isinstance(content, list) or not content:
        return "content that is neither text nor parts"
    return next((f"a part {part}" for part in content if not isinstance(part, dict) or "type" not in part), None)


def order_fault(messages):
    """Results follow their calls at once, one for each."""
    open_ids, function = [], None
    spoken = False
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"messages[{place}]: a result of {message['tool_call_id']!r}, which no call before it has open"
            open_ids.remove(message["tool_call_id"])
            continue
        if role == "function":
            if function != message["name"]:
                return f"messages[{place}]: a function's result without its call"
            function = None
            continue
        if open_ids or function:
            return f"messages[{place}]: {role} where results of {open_ids or function} are due"
        spoken = spoken or role in ("user", "assistant")
        open_ids = [call["id"] for call in message.get("tool_calls", [])]
        function = (message.get("function_call") or {}).get("name")
    return f"no result of {open_ids or function} at the end" if open_ids or function else None


def lenient_fault(messages):
    """Results follow their calls sometime: several servers take that."""
    open_ids = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"messages[{place}]: a result of {message['tool_call_id']!r}, which no call before it has open"
            open_ids.remove(message["tool_call_id"])
        open_ids += [call["id"] for call in message.get("tool_calls", [])]
    return f"no result of {open_ids}" if open_ids else None


def items(body):
    return [canonical(message, ("cache_control",)) for message in body["messages"] if message["role"] not in ("system", "developer")]


def answer(body, total, _made):
    usage = {"prompt_tokens": total, "completion_tokens": 3, "total_tokens": total + 3}
    head = {"id": "chatcmpl-1", "created": 1700000000, "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "I go on."}, "finish_reason": "stop"}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    chunks = [
        {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "I go on."}, "finish_reason": None}]},
        {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    if body.get("stream_options", {}).get("include_usage"):
        chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def ended(text):
    return text.rstrip().endswith("data: [DONE]")


def error(message):
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def learn(_made, _number, _text, _is_stream):
    """Nothing of an answer returns in later requests."""
