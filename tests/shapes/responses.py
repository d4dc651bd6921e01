"""OpenAI's Responses: conversations of agents, and a provider's rules for them."""

import json
import random

from common import FRAME_TOKENS, Conversation, Writer, canonical, finish, length, media_most, opaque_fault, texts, tool_schema

PATH = "/v1/responses"
MODELS = ["gpt-5", "gpt-4o", "gpt-6.1-sol"]
SHAPES = [
    "plain", "parallel", "late_outputs", "mcp", "approvals", "deferred", "deferred_hosted", "program", "reasoning", "late_system",
    "volatile_head", "opaque", "unknown_items", "built_in", "shells", "custom", "reused_ids", "late_approval", "namespaces", "clock_head",
]  # fmt: skip
MEDIA = ("image_url", "file_data", "data", "encrypted_content", "fingerprint", "type", "id", "call_id", "status", "role", "result", "caller", "approval_request_id")
OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
}
PARTS = {
    "user": ("input_text", "input_image", "input_file", "input_audio", "input_media"),
    "system": ("input_text",),
    "developer": ("input_text",),
    "assistant": ("output_text", "refusal"),
}


def size(item):
    skip = MEDIA if item.get("type") != "program_output" else tuple(name for name in MEDIA if name != "result")
    return FRAME_TOKENS + texts(item, skip)


def upper(item):
    return size(item) + media_tokens(item)


def media_tokens(value):
    if isinstance(value, list):
        return sum(media_tokens(inner) for inner in value)
    if not isinstance(value, dict):
        return 0
    total = sum(media_tokens(inner) for inner in value.values() if isinstance(inner, (list, dict)))
    for name in ("image_url", "file_data", "data", "encrypted_content", "fingerprint", "result"):
        if isinstance(value.get(name), str):
            total += len(value[name]) // 2 if len(value[name]) < 3000 else media_most(value[name])
    return total


def generate(seed, shapes=None, requests=6):
    chance = random.Random(f"responses {seed}")
    picked = chance.sample(SHAPES, chance.choice([1, 1, 2, 3]))
    picked = shapes or picked
    made = Conversation("responses", seed, chance.choice(MODELS), tuple(picked))
    made.facts |= {"after": {}, "before": {}}
    writer = ResponsesWriter(chance, made)
    made.head = {"model": made.model, "instructions": writer.text(30, 200), "tools": writer.tools(), "store": False}
    if chance.random() < 0.3:
        writer.add({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": writer.text(10, 60)}]})
    writer.add({"type": "message", "role": "user", "content": [{"type": "input_text", "text": writer.text(10, 80)}]})
    for step in range(length(chance, picked)):
        writer.step(step)
    writer.settle()
    writer.cut()
    head_size = texts(made.head["instructions"]) + sum(tool_size(tool) for tool in made.head["tools"]) + size(made.log[0])
    loaded = sum(tool_size({**tool, "defer_loading": False}) + 60 for tool in writer.loaded.values())
    return finish(writer, size, upper, head_size + 2 * loaded, requests)


def tool_size(tool):
    """Of a deferred function the name and description are in the prompt, of a namespace's none of it."""
    if tool["type"] == "namespace":
        return texts({**tool, "tools": []}, MEDIA) + sum(tool_size(inner) for inner in tool["tools"] if not inner.get("defer_loading"))
    if tool.get("defer_loading"):
        return texts([tool.get("name", ""), tool.get("description", "")])
    return texts(tool, ("type",))


# Tools that a model may still call, the last ones that it loaded.
RECENT_LOADS = 4


class ResponsesWriter(Writer):
    def __init__(self, chance, made):
        super().__init__(chance, made)
        self.loaded = {}
        self.waiting = []

    def has(self, shape):
        return shape in self.made.shapes

    def function(self, name, properties=2, **more):
        return {"type": "function", "name": name, "description": self.text(5, 30), "parameters": tool_schema(self, properties), "strict": False, **more}

    def tools(self):
        tools = [self.function(f"tool_{n}") for n in range(self.chance.randint(1, 6))]
        if self.has("custom"):
            tools.append({"type": "custom", "name": "apply", "description": self.text(5, 20)})
        if self.has("shells"):
            tools += [{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
        if self.has("mcp") or self.has("approvals") or self.has("late_approval"):
            tools.append({"type": "mcp", "server_label": "maps", "server_url": "https://example.com/mcp", "require_approval": "always"})
        if self.has("built_in"):
            tools += [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "file_search", "vector_store_ids": ["vs_1"]}]
        if self.has("program"):
            tools.append({"type": "programmatic_tool_calling"})
        if self.has("deferred") or self.has("deferred_hosted") or self.has("namespaces"):
            tools.append({"type": "tool_search", "execution": "client" if self.has("deferred") else "server"})
            inner = [self.function(f"deferred_{n}", 8, defer_loading=True) for n in range(self.chance.choice([4, 20, 60]))]
            if self.has("namespaces"):
                tools.append({"type": "namespace", "name": "crm", "description": self.text(5, 15), "tools": inner})
            else:
                tools += inner
        return tools

    def call(self, name=None, **more):
        names = [tool["name"] for tool in self.made.head["tools"] if tool.get("name", "").startswith("tool_")]
        call_id = "call_1" if self.has("reused_ids") and not more.get("late") else self.id("call")
        more.pop("late", None)
        picked = name or self.chance.choice(names)
        if picked.startswith("deferred_") and self.has("namespaces"):
            more["namespace"] = "crm"
        arguments = json.dumps({"command": self.text(2, 15)})
        return {"type": "function_call", "id": self.id("fc"), "call_id": call_id, "name": picked, "arguments": arguments, "status": "completed", **more}

    def output(self, call):
        kind = OUTPUTS[call["type"]]
        text = self.result()
        made = {"type": kind, "call_id": call["call_id"], "output": text}
        if kind == "function_call_output" and self.chance.random() < 0.2:
            made["output"] = [{"type": "input_text", "text": text}]
        elif kind == "shell_call_output":
            made["output"] = [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        elif kind == "apply_patch_call_output":
            made["status"] = "completed"
        elif kind == "program_output":
            del made["output"]
            made |= {"id": self.id("po"), "result": text, "status": "completed"}
        return made

    def user(self, text=None):
        parts = [{"type": "input_text", "text": text or self.text(5, 60)}]
        if self.has("opaque") and self.chance.random() < 0.6:
            if self.chance.random() < 0.5:
                parts.append({"type": "input_image", "image_url": f"data:image/png;base64,{self.png()}", "detail": "low"})
            else:
                data = f"data:application/pdf;base64,{self.pdf(self.chance.randint(1, 4))}"
                parts.append({"type": "input_file", "filename": "plan.pdf", "file_data": data})
        elif self.has("unknown_items") and self.chance.random() < 0.4:
            parts.append({"type": "input_media", "data": self.sealed(2000, 40000), "media_type": "application/x-unknown"})
        return {"type": "message", "role": "user", "content": parts}

    def reasoned(self, *items):
        """What a reasoning model wrote: its reasoning and what it led to refer to each other."""
        if not self.has("reasoning") or self.made.model == "gpt-4o" or self.chance.random() < 0.2:
            return list(items)
        thought = {"type": "reasoning", "id": self.id("rs"), "summary": [], "encrypted_content": self.sealed(200, 900)}
        if self.chance.random() < 0.4:
            thought["summary"] = [{"type": "summary_text", "text": self.text(5, 30)}]
        self.made.facts["after"][thought["id"]] = items[0]["id"]
        self.made.facts["before"][items[0]["id"]] = thought["id"]
        return [thought, *items]

    def say(self, text=None):
        content = [{"type": "output_text", "text": text or self.text(5, 60), "annotations": []}]
        return {"type": "message", "id": self.id("msg"), "role": "assistant", "status": "completed", "content": content}

    def reminder(self):
        role = self.chance.choice(["developer", "developer", "system"])
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": f"Tokens left: {99_000 - self.number() * 311}. Thread {self.made.seed}."}]}

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

    def step(self, step):
        makers = {
            "late_outputs": self.late, "mcp": self.mcp, "approvals": self.approval, "late_approval": self.late_approval, "deferred": self.search,
            "deferred_hosted": self.search, "namespaces": self.search, "program": self.program, "built_in": self.built_in, "shells": self.shell,
            "custom": self.custom, "unknown_items": self.unknown,
        }  # fmt: skip
        special = [maker for shape, maker in makers.items() if self.has(shape)]
        dice = self.chance.random()
        self.now = step
        if special and dice < 0.4:
            self.chance.choice(special)()
        elif dice < 0.8:
            self.round()
        else:
            self.settle()
            self.add(*self.reasoned(self.say()))
            self.add(self.user())
        self.settle(step)
        if not self.waiting:
            if self.has("late_system"):
                self.add(self.reminder())
            self.cut()

    def round(self):
        count = self.chance.randint(2, 5) if self.has("parallel") and not self.has("reused_ids") else 1
        names = [None] * count
        if self.loaded and self.chance.random() < 0.6:
            # A model calls what it has loaded lately: it no longer sees what was left out.
            names[0] = self.chance.choice(sorted(list(self.loaded)[-RECENT_LOADS:]))
        calls = [self.call(name) for name in names]
        outputs = [self.output(call) for call in calls]
        if self.chance.random() < 0.3:
            self.chance.shuffle(outputs)
        self.add(*self.reasoned(*calls), *outputs)

    def late(self):
        """A call that is answered after other calls and their outputs."""
        call = self.call(late=True)
        begin = self.add(*self.reasoned(call))
        self.waiting.append((self.now + self.chance.randint(1, 3), begin, call))

    def mcp_call(self, **more):
        return {"type": "mcp_call", "id": self.id("mcp"), "server_label": "maps", "name": "find", "arguments": json.dumps({"query": self.text(2, 9)}), "output": self.result(), "error": None, **more}

    def mcp(self):
        listed = []
        if not any(item.get("type") == "mcp_list_tools" for item in self.made.log):
            tools = [{"name": "find", "description": self.text(5, 30), "input_schema": tool_schema(self)}]
            listed = [{"type": "mcp_list_tools", "id": self.id("mcpl"), "server_label": "maps", "tools": tools}]
        self.add(*listed, self.mcp_call(), self.say())
        self.add(self.user())

    def approval_pair(self):
        request = {"type": "mcp_approval_request", "id": self.id("mcpr"), "server_label": "maps", "name": "find", "arguments": json.dumps({"query": self.text(2, 9)})}
        response = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        return request, response, self.mcp_call(approval_request_id=request["id"])

    def approval(self):
        request, response, call = self.approval_pair()
        begin = self.add(request, response)
        self.cut()
        self.add(call, self.say())
        self.made.spans.append((begin, len(self.made.log)))
        self.add(self.user())

    def late_approval(self):
        """Other calls stand between the request, its response and the call."""
        request, response, call = self.approval_pair()
        begin = self.add(self.say(), request)
        one = self.call()
        self.add(one, self.output(one))
        self.add(response)
        self.cut()
        self.add(call, self.say())
        self.made.spans.append((begin, len(self.made.log)))
        self.add(self.user())

    def deferred_tools(self):
        found = {}
        for tool in self.made.head["tools"]:
            for inner in tool.get("tools", [tool]) if tool["type"] == "namespace" else [tool]:
                if inner.get("defer_loading"):
                    found[inner["name"]] = inner
        return found

    def search(self):
        tools = self.deferred_tools()
        names = self.chance.sample(sorted(tools), min(len(tools), self.chance.randint(1, 3)))
        self.loaded = {name: tool for name, tool in self.loaded.items() if name not in names}
        self.loaded |= {name: tools[name] for name in names}
        loads = [tools[name] for name in names]
        if self.has("namespaces"):
            loads = [{"type": "namespace", "name": "crm", "description": "", "tools": loads}]
        where = "client" if self.has("deferred") else "server"
        call_id = self.id("call") if where == "client" else None
        search = {"type": "tool_search_call", "id": self.id("tsc"), "call_id": call_id, "execution": where, "arguments": {"query": self.text(1, 4)}, "status": "completed"}
        output = {"type": "tool_search_output", "id": self.id("tso"), "call_id": call_id, "execution": where, "tools": loads, "status": "completed"}
        self.add(*self.reasoned(search), output)
        if where == "client":
            self.cut()
        call = self.call(names[0])
        self.add(*self.reasoned(call), self.output(call))

    def program(self):
        """A program of the model calls the client's functions: their outputs stand in its middle."""
        program = {"type": "program", "id": self.id("prog"), "call_id": self.id("call"), "code": self.text(5, 60), "fingerprint": self.sealed(100, 300)}
        begin = self.add(*self.reasoned(program))
        for _ in range(self.chance.randint(1, 3)):
            calls = [self.call(late=True, caller={"type": "program", "caller_id": program["call_id"]}) for _ in range(self.chance.choice([1, 1, 3]))]
            outputs = [{**self.output(call), "caller": call["caller"]} for call in calls]
            self.add(*calls, *outputs)
            self.cut()
        self.add(self.output(program))
        self.add(self.say())
        self.made.spans.append((begin, len(self.made.log)))
        self.add(self.user())

    def built_in(self):
        kind = self.chance.choice(["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"])
        item = {"type": kind, "id": self.id("ws"), "status": "completed"}
        if kind == "web_search_call":
            item["action"] = {"type": "search", "query": self.text(2, 6)}
        elif kind == "file_search_call":
            results = [{"file_id": "file_1", "filename": "a.md", "score": 0.9, "text": self.result(), "attributes": {}}]
            item |= {"queries": [self.text(2, 6)], "results": results}
        elif kind == "code_interpreter_call":
            item |= {"code": self.text(5, 40), "container_id": "cntr_1", "outputs": [{"type": "logs", "logs": self.result()}]}
        else:
            item["result"] = self.png()
        self.add(*self.reasoned(item), self.say())
        self.add(self.user())

    def shell(self):
        kind = self.chance.choice(["local_shell_call", "shell_call", "apply_patch_call"])
        item = {"type": kind, "id": self.id("sh"), "call_id": self.id("call"), "status": "completed"}
        if kind == "local_shell_call":
            item["action"] = {"type": "exec", "command": ["bash", "-c", self.text(2, 9)], "env": {}}
        elif kind == "shell_call":
            item["action"] = {"commands": [self.text(2, 9)], "timeout_ms": 1000, "max_output_length": 4096}
        else:
            item["operation"] = {"type": "update_file", "path": "src/a.rs", "diff": self.text(5, 60)}
        self.add(*self.reasoned(item), self.output(item))

    def custom(self):
        item = {"type": "custom_tool_call", "id": self.id("ctc"), "call_id": self.id("call"), "name": "apply", "input": self.text(5, 60)}
        self.add(*self.reasoned(item), self.output(item))

    def unknown(self):
        self.add({"type": "sensor_report", "id": self.id("sr"), "payload": {"data": self.sealed(500, 40000)}, "note": self.text(3, 20)})
        self.add(self.user())


def body(made, number):
    head = dict(made.head)
    if "clock_head" in made.shapes or "volatile_head" in made.shapes:
        first = f"Session counter {number * 7919 + 13}." if "volatile_head" in made.shapes else f"Now it is 12:{number:02d}:31 UTC."
        head["instructions"] = f"{first}\n{head['instructions']}"
    return {**head, "input": made.log[: made.cuts[number]], "stream": made.streams[number]}


def count(body):
    return texts(body.get("instructions", "")) + sum(tool_size(tool) for tool in body.get("tools", [])) + sum(size(item) for item in body["input"])


def most(body):
    return count(body) + media_tokens(body["input"])


def judge(body, made, is_sent=True):
    items = body.get("input")
    if not isinstance(items, list) or not items:
        return "no input"
    if "weir" in body:
        return "a member weir"
    for place, item in enumerate(items):
        wrong = item_fault(item)
        if wrong:
            return f"input[{place}]: {wrong}"
    return call_fault(items) or link_fault(items) or deferred_fault(body) or reasoning_fault(items, made) or opaque_fault(items, made.opaque)


def item_fault(item):
    if "weir" in item:
        return "a member weir"
    if item.get("type", "message") != "message":
        return None
    if item["role"] not in PARTS:
        return f"a role {item['role']}"
    content = item["content"]
    if isinstance(content, str):
        return None
    if not content:
        return "no content"
    return next((f"a part {part['type']} of {item['role']}" for part in content if part["type"] not in PARTS[item["role"]]), None)


def call_fault(items):
    """Each call has one output behind it, each output a call before it."""
    waiting, ids = {}, set()
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if "id" in item:
            if item["id"] in ids:
                return f"input[{place}]: Duplicate item found with id {item['id']}"
            ids.add(item["id"])
        key = item.get("call_id")
        if kind in OUTPUTS and key is not None:
            if key in waiting:
                return f"input[{place}]: two open calls of one id {key}"
            waiting[key] = OUTPUTS[kind]
        elif kind in OUTPUTS.values() and key is not None:
            if waiting.pop(key, None) != kind:
                return f"input[{place}]: No tool call found for {kind} with call_id {key}."
    open_programs = [key for key, kind in waiting.items() if kind == "program_output"]
    late = [key for key in waiting if key not in open_programs]
    if late:
        return f"No tool output found for call {late}."
    # Only the newest program may still wait for what it called.
    if open_programs and not last_calls_are_of(items, open_programs[-1]) or len(open_programs) > 1:
        return f"No output found for program {open_programs}."
    return None


def last_calls_are_of(items, program):
    for item in reversed(items):
        if item.get("caller"):
            return item["caller"].get("caller_id") == program
        if item.get("type") == "program":
            return item["call_id"] == program
        if item.get("role") not in ("developer", "system"):
            return False
    return False


def link_fault(items):
    programs, requests, searches = set(), set(), 0
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        caller = item.get("caller", {}).get("caller_id")
        if kind == "program":
            programs.add(item["call_id"])
        if caller and caller not in programs:
            return f"input[{place}]: caller {caller} is no program before it"
        if kind == "mcp_approval_request":
            requests.add(item["id"])
        named = item.get("approval_request_id")
        if named and named not in requests:
            return f"input[{place}]: No approval request found with id {named}."
        # Hosted searches have no ids: they stand next to each other.
        searches += (kind == "tool_search_call" and item["call_id"] is None) - (kind == "tool_search_output" and item["call_id"] is None)
        if searches < 0 or searches > 1:
            return f"input[{place}]: a search for tools without its other half"
    return "a search for tools without its output" if searches else None


def names_of(tools, deferred):
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from names_of(tool["tools"], deferred)
        elif "name" in tool and bool(tool.get("defer_loading")) in deferred:
            yield tool["name"]


def deferred_fault(body):
    ready = set(names_of(body.get("tools", []), (False,)))
    for place, item in enumerate(body["input"]):
        if item.get("type") == "tool_search_output":
            ready |= set(names_of(item["tools"], (False, True)))
        if item.get("type") == "function_call" and item["name"] not in ready:
            return f"input[{place}]: a call of {item['name']}, which is not loaded"
    return None


def reasoning_fault(items, made):
    places = {item["id"]: place for place, item in enumerate(items) if "id" in item}
    for thought, follower in made.facts["after"].items():
        if thought in places and places.get(follower) != places[thought] + 1:
            return f"Item '{thought}' of type 'reasoning' was provided without its required following item."
        if follower in places and thought not in places:
            # Messages may lose their reasoning.
            kind = items[places[follower]]["type"]
            if kind != "message":
                return f"Item '{follower}' of type '{kind}' was provided without its required 'reasoning' item: '{thought}'."
    return None


def items(body):
    return [canonical(item) for item in body["input"]]


def answer(body, total, _made):
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "I go on.", "annotations": []}]}
    usage = {"input_tokens": total, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": total + 3}
    whole = {"id": "resp_1", "object": "response", "created_at": 1700000000, "status": "completed", "model": body["model"], "output": [message], "usage": usage, "error": None}
    if not body.get("stream"):
        return whole
    events = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**message, "status": "in_progress", "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "msg_1", "delta": "I go on."},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": whole},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n" for number, event in enumerate(events))


def ended(text):
    return "event: response.completed" in text


def error(message):
    return {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": None}}


def learn(_made, _number, _text, _is_stream):
    """Nothing of an answer returns in later requests."""
