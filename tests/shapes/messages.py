"""Anthropic's Messages: conversations of agents, and a provider's rules for them."""

import base64
import hashlib
import hmac
import json
import random
import re

from common import FRAME_TOKENS, Conversation, Writer, canonical, finish, length, media_most, opaque_fault, texts, tool_schema

PATH = "/v1/messages"
# The first binds its thinking to everything before it.
MODELS = ["claude-opus-5-5", "claude-sonnet-4-5", "claude-opus-4-8", "claude-sonnet-4-5"]
BOUND = "claude-opus-5-5"
SHAPES = [
    "plain", "parallel", "server", "server_late", "advisor", "programmatic", "pause_turn", "mcp", "deferred", "deferred_client",
    "late_system", "volatile_head", "opaque", "unknown_parts", "thinking", "cache_marks", "behind_results", "code", "clock_head",
    "search_results", "server_chain", "two_waits",
]  # fmt: skip
MARK = ("cache_control",)
MEDIA = ("data", "url", "signature", "encrypted_content", "encrypted_index", "encrypted_stdout", "cache_control", "type", "id", "tool_use_id", "caller")
BILLING = "x-anthropic-billing-header"
ID = re.compile(r"^[a-zA-Z0-9_-]+$")
MAX_MARKS = 4
RESULT = "_tool_result"
SERVER_RESULTS = {
    "web_search": "web_search_tool_result",
    "web_fetch": "web_fetch_tool_result",
    "advisor": "advisor_tool_result",
    "code_execution": "code_execution_tool_result",
    "bash_code_execution": "bash_code_execution_tool_result",
    "text_editor_code_execution": "text_editor_code_execution_tool_result",
    "tool_search_tool_regex": "tool_search_tool_result",
}


def blocks_of(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def size(message):
    return FRAME_TOKENS + texts(message["content"], MEDIA)


def upper(message):
    return size(message) + media_tokens(message["content"])


def media_tokens(value):
    if isinstance(value, list):
        return sum(media_tokens(inner) for inner in value)
    if not isinstance(value, dict):
        return 0
    total = sum(media_tokens(inner) for inner in value.values() if isinstance(inner, (list, dict)))
    for name in ("data", "encrypted_content", "encrypted_index", "encrypted_stdout", "signature"):
        if isinstance(value.get(name), str):
            total += media_most(value[name]) if value.get("media_type") else len(value[name]) // 2
    return total


def generate(seed, shapes=None, requests=6):
    chance = random.Random(f"messages {seed}")
    picked = chance.sample(SHAPES, chance.choice([1, 1, 2, 3]))
    picked = shapes or picked
    made = Conversation("messages", seed, chance.choice(MODELS), tuple(picked))
    writer = MessagesWriter(chance, made)
    if made.model == BOUND and "clock_head" in picked:
        # Every request of such an agent would invalidate its own thinking.
        made.model = "claude-opus-4-8"
    if "late_system" in picked and made.model == "claude-sonnet-4-5":
        # Older models refuse them.
        made.model = "claude-opus-4-8"
    made.head = {"model": made.model, "system": writer.system(), "tools": writer.tools()}
    if made.model == BOUND or "thinking" in picked:
        made.head["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    writer.add({"role": "user", "content": writer.text(10, 80)})
    for _ in range(length(chance, picked)):
        writer.step()
    writer.cut()
    head_size = texts(made.head["system"], MEDIA) + sum(texts(tool, MEDIA) for tool in made.head["tools"] if not tool.get("defer_loading"))
    loaded = sum(texts(tool, MEDIA) + 60 for tool in made.head["tools"] if tool["name"] in writer.loaded)
    return finish(writer, size, upper, head_size + 2 * loaded, requests)


# Tools that a model may still call, the last ones that it loaded.
RECENT_LOADS = 4


class MessagesWriter(Writer):
    def __init__(self, chance, made):
        super().__init__(chance, made)
        self.loaded = {}

    def has(self, shape):
        return shape in self.made.shapes

    def system(self):
        blocks = [{"type": "text", "text": self.text(30, 200)}]
        if self.has("volatile_head") or self.has("clock_head"):
            blocks.insert(0, {"type": "text", "text": "volatile"})
        if self.has("cache_marks"):
            blocks[-1]["cache_control"] = {"type": "ephemeral", "ttl": self.chance.choice(["1h", "5m"])}
        return blocks if len(blocks) > 1 or self.chance.random() < 0.5 or self.has("cache_marks") else blocks[0]["text"]

    def tool(self, name, properties=2):
        return {"name": name, "description": self.text(5, 30), "input_schema": tool_schema(self, properties)}

    def tools(self):
        tools = [self.tool(f"tool_{n}") for n in range(self.chance.randint(1, 6))]
        if self.has("server") or self.has("server_late") or self.has("pause_turn") or self.has("server_chain") or self.has("two_waits"):
            tools += [{"type": "web_search_20250305", "name": "web_search"}, {"type": "web_fetch_20250910", "name": "web_fetch"}]
        if self.has("advisor"):
            tools.append({"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-8"})
        if self.has("code") or self.has("programmatic"):
            tools.append({"type": "code_execution_20260120", "name": "code_execution"})
        if self.has("deferred"):
            tools.append({"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"})
        if self.has("deferred_client"):
            tools.append(self.tool("find_tools"))
        if self.has("deferred") or self.has("deferred_client"):
            tools += [{**self.tool(f"deferred_{n}", 8), "defer_loading": True} for n in range(self.chance.choice([4, 20, 60]))]
        if self.has("mcp"):
            tools.append({"type": "mcp_toolset", "mcp_server_name": "maps", "name": "maps"})
        return tools

    def tool_use(self, name=None, caller=None):
        names = [tool["name"] for tool in self.made.head["tools"] if tool["name"].startswith("tool_") and "input_schema" in tool]
        block = {"type": "tool_use", "id": self.id("toolu"), "name": name or self.chance.choice(names), "input": {"command": self.text(2, 15)}}
        return {**block, "caller": {"type": "code_execution_20260120", "tool_id": caller}} if caller else block

    def tool_result(self, use):
        content = self.result()
        if self.has("search_results") and self.chance.random() < 0.6:
            content = [
                {"type": "search_result", "source": f"file_{n}.md", "title": self.text(2, 5), "content": [{"type": "text", "text": self.result()}]}
                for n in range(self.chance.randint(1, 3))
            ]
        elif self.has("opaque") and self.chance.random() < 0.3:
            content = [{"type": "text", "text": self.text(3, 20)}, self.image()]
        elif self.chance.random() < 0.3:
            content = [{"type": "text", "text": content}]
        return {"type": "tool_result", "tool_use_id": use["id"], "content": content}

    def image(self):
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": self.png()}}

    def server_use(self, name):
        given = {"web_search": {"query": self.text(2, 6)}, "advisor": {}, "tool_search_tool_regex": {"query": "deferred"}}
        return {"type": "server_tool_use", "id": self.id("srvtoolu"), "name": name, "input": given.get(name, {"code": self.text(5, 40)})}

    def server_result(self, use):
        name = use["name"]
        block = {"type": SERVER_RESULTS[name], "tool_use_id": use["id"]}
        if name == "web_search":
            block["content"] = [
                {"type": "web_search_result", "url": "https://example.com/a", "title": self.text(2, 6), "encrypted_content": self.sealed(), "page_age": None}
                for _ in range(self.chance.randint(1, 4))
            ]
        elif name == "web_fetch":
            source = {"type": "text", "media_type": "text/plain", "data": self.text(40, 400)}
            document = {"type": "document", "source": source, "title": self.text(2, 5)}
            block["content"] = {"type": "web_fetch_result", "url": "https://example.com/b", "content": document, "retrieved_at": "2026-11-01T00:00:00Z"}
        elif name == "advisor":
            if self.chance.random() < 0.3:
                block["content"] = {"type": "advisor_redacted_result", "encrypted_content": self.sealed()}
            else:
                block["content"] = {"type": "advisor_result", "text": self.text(10, 120)}
        else:
            kind = block["type"].replace("_tool_result", "_result")
            block["content"] = {"type": kind, "stdout": self.result(), "stderr": "", "return_code": 0, "content": []}
        return block

    def say(self, *blocks):
        """A message of the assistant, with some words in front."""
        words = [{"type": "text", "text": self.text(3, 30)}] if self.chance.random() < 0.7 else []
        return {"role": "assistant", "content": [*words, *blocks]}

    def results(self, uses, only=False):
        blocks = [self.tool_result(use) for use in uses]
        if self.has("behind_results") and not only and self.chance.random() < 0.5:
            blocks.append({"type": "text", "text": f"<system-reminder>Did you look at the list? {self.text(4, 30)}</system-reminder>"})
        return {"role": "user", "content": blocks}

    def reminder(self):
        text = f"Token usage: {self.number() * 713}/{self.made.seed + 100_000}; {self.chance.randint(100, 90_000)} remaining"
        return {"role": "system", "content": text if self.chance.random() < 0.5 else [{"type": "text", "text": text}]}

    def behind(self):
        """What an agent appends to its own request."""
        if self.made.log[-1]["role"] == "user" and self.has("late_system"):
            begin = len(self.made.log) - 1
            self.add(self.reminder())
            self.made.spans.append((begin, len(self.made.log)))
        self.cut()

    def step(self):
        makers = {
            "server": self.server, "server_late": self.server_late, "advisor": self.advisor, "programmatic": self.programmatic,
            "pause_turn": self.pause_turn, "server_chain": self.server_chain, "two_waits": self.two_waits, "mcp": self.mcp, "deferred": self.deferred, "deferred_client": self.deferred_client, "code": self.code,
        }  # fmt: skip
        special = [maker for shape, maker in makers.items() if self.has(shape)]
        dice = self.chance.random()
        if special and dice < 0.35:
            self.chance.choice(special)()
        elif dice < 0.8:
            self.round()
        else:
            self.talk()
        self.behind()

    def round(self):
        count = self.chance.randint(2, 5) if self.has("parallel") else self.chance.choice([1, 1, 2])
        names = [None] * count
        if self.loaded and self.chance.random() < 0.6:
            # A model calls what it has loaded lately: it no longer sees what was left out.
            names[0] = self.chance.choice(sorted(list(self.loaded)[-RECENT_LOADS:]))
        uses = [self.tool_use(name) for name in names]
        self.add(self.say(*uses), self.results(uses))

    def talk(self):
        self.add({"role": "assistant", "content": self.text(10, 120)})
        content = self.text(5, 60)
        if self.has("opaque") and self.chance.random() < 0.6:
            pages = self.chance.randint(1, 4)
            source = {"type": "base64", "media_type": "application/pdf", "data": self.pdf(pages)}
            media = self.chance.choice([self.image(), {"type": "document", "source": source}])
            content = [media, {"type": "text", "text": content}]
        elif self.has("unknown_parts") and self.chance.random() < 0.6:
            content = [{"type": "media_upload", "source": {"type": "base64", "data": self.sealed(2000, 40000)}}, {"type": "text", "text": content}]
        self.add({"role": "user", "content": content})

    def server(self):
        name = self.chance.choice(["web_search", "web_fetch"])
        use = self.server_use(name)
        blocks = [use, self.server_result(use), {"type": "text", "text": self.text(5, 40)}]
        if name == "web_search" and self.chance.random() < 0.5:
            blocks[-1]["citations"] = [
                {"type": "web_search_result_location", "url": "https://example.com/a", "title": "a", "encrypted_index": self.sealed(60, 200), "cited_text": self.text(3, 9)}
            ]
        self.add(self.say(*blocks), {"role": "user", "content": self.text(3, 30)})

    def late(self, name):
        """A server's tool in one group with a client's: its result stands in a later message."""
        use = self.server_use(name)
        client = [self.tool_use() for _ in range(self.chance.choice([1, 1, 2]))]
        group = [use, *client] if self.chance.random() < 0.7 else [client[0], use, *client[1:]]
        log = [self.say(*group), self.results(client)]
        rest = self.server_result(use)
        if self.chance.random() < 0.4:
            more = self.tool_use()
            log += [{"role": "assistant", "content": [rest, {"type": "text", "text": self.text(3, 20)}, more]}, self.results([more])]
        else:
            log += [{"role": "assistant", "content": [rest, {"type": "text", "text": self.text(3, 20)}]}, {"role": "user", "content": self.text(3, 30)}]
        self.between(log, [2])

    def between(self, log, cuts):
        """Adds messages that belong together; the agent sends some of their beginnings, too."""
        begin = len(self.made.log)
        for place in cuts:
            self.made.cuts.append(begin + place)
        self.add(*log)

    def server_late(self):
        self.late(self.chance.choice(["web_search", "web_fetch"]))

    def advisor(self):
        if self.chance.random() < 0.3:
            use = self.server_use("advisor")
            self.add(self.say(use, self.server_result(use), {"type": "text", "text": self.text(3, 20)}), {"role": "user", "content": self.text(3, 20)})
        else:
            self.late("advisor")

    def programmatic(self):
        """Code that calls the client's tools: its result comes after all of theirs."""
        code = self.server_use("code_execution")
        log, cuts = [], []
        for place in range(self.chance.randint(1, 4)):
            uses = [self.tool_use(caller=code["id"]) for _ in range(self.chance.choice([1, 1, 3]))]
            log += [self.say(code, *uses) if place == 0 else {"role": "assistant", "content": uses}, self.results(uses, only=True)]
            cuts.append(len(log))
        end = [self.server_result(code), {"type": "text", "text": self.text(5, 40)}]
        log += [{"role": "assistant", "content": end}, {"role": "user", "content": self.text(3, 30)}]
        self.between(log, cuts)

    def pause_turn(self):
        """The answer stops at a server's tool; sent back as it is, it goes on with the result."""
        use = self.server_use("web_search")
        first = self.say(use)
        second = {"role": "assistant", "content": [self.server_result(use), {"type": "text", "text": self.text(5, 40)}]}
        self.between([first, second, {"role": "user", "content": self.text(3, 20)}], [1])

    def server_chain(self):
        """Each message has the result of the server's call before it, and calls the server and the client again."""
        results = []
        for _ in range(self.chance.choice([2, 3, 12, 40])):
            use, client = self.server_use(self.chance.choice(["web_search", "web_fetch"])), self.tool_use()
            group = [use, client] if self.chance.random() < 0.7 else [client, use]
            self.add({"role": "assistant", "content": [*results, *group]}, self.results([client]))
            results = [self.server_result(use)]
            self.cut()
        self.add({"role": "assistant", "content": [*results, {"type": "text", "text": self.text(3, 20)}]}, {"role": "user", "content": self.text(3, 30)})

    def two_waits(self):
        """One message has the results of servers' calls in several messages before it, and a call of the client's."""
        waiting = []
        for _ in range(self.chance.choice([2, 2, 3])):
            use, client = self.server_use(self.chance.choice(["web_search", "web_fetch"])), self.tool_use()
            waiting.append(use)
            self.add(self.say(use, client), self.results([client]))
            self.cut()
            for _ in range(self.chance.choice([0, 0, 1, 3])):
                self.round()
                self.cut()
        client = self.tool_use()
        self.add({"role": "assistant", "content": [*map(self.server_result, waiting), client]}, self.results([client]))

    def mcp(self):
        use = {"type": "mcp_tool_use", "id": self.id("mcptoolu"), "name": "find", "server_name": "maps", "input": {"query": self.text(2, 9)}}
        result = {"type": "mcp_tool_result", "tool_use_id": use["id"], "is_error": False, "content": [{"type": "text", "text": self.result()}]}
        blocks = [use, result, {"type": "text", "text": self.text(3, 20)}]
        if self.chance.random() < 0.5:
            client = self.tool_use()
            self.add(self.say(*blocks, client), self.results([client]))
        else:
            self.add(self.say(*blocks), {"role": "user", "content": self.text(3, 20)})

    def load(self):
        names = [tool["name"] for tool in self.made.head["tools"] if tool.get("defer_loading")]
        found = self.chance.sample(names, min(len(names), self.chance.randint(1, 3)))
        self.loaded = {**{name: None for name in self.loaded if name not in found}, **dict.fromkeys(found)}
        return [{"type": "tool_reference", "tool_name": name} for name in found], found[0]

    def deferred(self):
        use = self.server_use("tool_search_tool_regex")
        references, first = self.load()
        result = {"type": "tool_search_tool_result", "tool_use_id": use["id"], "content": {"type": "tool_search_tool_search_result", "tool_references": references}}
        call = self.tool_use(first)
        self.add(self.say(use, result, {"type": "text", "text": self.text(2, 9)}, call), self.results([call]))

    def deferred_client(self):
        search = self.tool_use("find_tools")
        references, first = self.load()
        self.add(self.say(search), {"role": "user", "content": [{"type": "tool_result", "tool_use_id": search["id"], "content": references}]})
        self.cut()
        call = self.tool_use(first)
        self.add(self.say(call), self.results([call]))

    def code(self):
        name = self.chance.choice(["code_execution", "bash_code_execution", "text_editor_code_execution"])
        use = self.server_use(name)
        self.add(self.say(use, self.server_result(use), {"type": "text", "text": self.text(3, 20)}), {"role": "user", "content": self.text(3, 20)})


def body(made, number):
    log = made.log[: made.cuts[number]]
    head = dict(made.head)
    if "volatile_head" in made.shapes or "clock_head" in made.shapes:
        text = f"{BILLING}: cc_version=2.1.{number}; cch={hashlib.sha256(f'{made.seed} {number}'.encode()).hexdigest()[:5]};"
        if "volatile_head" not in made.shapes:
            text = f"The clock shows 2026-11-26 {number % 24:02d}:{number * 7 % 60:02d}, request {number}."
        head["system"] = [{"type": "text", "text": text}, *head["system"][1:]]
    if "cache_marks" in made.shapes:
        log = marked(log)
    return {**head, "max_tokens": 2000, "messages": log, "stream": made.streams[number]}


def marked(log):
    """The newest two messages of the user are marked, as agents do."""
    places = [place for place, message in enumerate(log) if message["role"] == "user"][-2:]
    log = list(log)
    for place in places:
        blocks = list(blocks_of(log[place]["content"]))
        blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral"}}
        log[place] = {**log[place], "content": blocks}
    return log


def count(body):
    tools = {tool["name"]: texts(tool, MEDIA) for tool in body.get("tools", [])}
    deferred = {tool["name"] for tool in body.get("tools", []) if tool.get("defer_loading")}
    loaded = {block["tool_name"] for block in all_blocks(body["messages"]) if block.get("type") == "tool_reference"}
    total = sum(amount for name, amount in tools.items() if name not in deferred or name in loaded)
    total += texts(body.get("system", ""), MEDIA) + sum(size(message) for message in body["messages"])
    return total - for_programs(body)


def most(body):
    # Each reference to a tool may be replaced by its definition again.
    tools = {tool["name"]: texts(tool, MEDIA) for tool in body.get("tools", [])}
    loads = [block["tool_name"] for block in all_blocks(body["messages"]) if block.get("type") == "tool_reference"]
    repeated = sum(tools[name] for name in loads) - sum(tools[name] for name in set(loads))
    media = sum(media_tokens(message["content"]) for message in body["messages"])
    return count(body) + for_programs(body) + repeated + media


def for_programs(body):
    """Results of calls that a program made go to the program, not into the prompt."""
    blocks = [block for message in body["messages"] for block in blocks_of(message["content"])]
    inner = {block["id"] for block in blocks if block.get("type") == "tool_use" and block.get("caller")}
    return sum(texts(block, MEDIA) for block in blocks if block.get("type") == "tool_result" and block["tool_use_id"] in inner)


def all_blocks(value):
    if isinstance(value, list):
        for inner in value:
            yield from all_blocks(inner)
    elif isinstance(value, dict):
        if "type" in value:
            yield value
        for name, inner in value.items():
            if name != "input":
                yield from all_blocks(inner)


def merged(messages):
    """Neighbours of one role are one message to the provider."""
    joined = []
    for message in messages:
        blocks = blocks_of(message["content"])
        if joined and joined[-1]["role"] == message["role"] != "system":
            joined[-1]["content"] += blocks
        else:
            joined.append({"role": message["role"], "content": list(blocks)})
    return joined


def judge(body, made, is_sent=True):
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "no messages"
    if "weir" in body or not isinstance(body.get("max_tokens"), int):
        return "members"
    for place, message in enumerate(messages):
        wrong = message_fault(message)
        if wrong:
            return f"messages.{place}: {wrong}"
    joined = merged(messages)
    return (
        order_fault(joined) or client_fault(joined) or server_fault(joined) or deferred_fault(body, joined) or mark_fault(body)
        or thinking_fault(body, made, is_sent) or opaque_fault(messages, made.opaque)
    )  # fmt: skip


def message_fault(message):
    if set(message) - {"role", "content"}:
        return f"members {sorted(message)}"
    role, content = message["role"], message["content"]
    if role not in ("user", "assistant", "system"):
        return f"a role {role}"
    if not content:
        return "no content"
    for place, block in enumerate(blocks_of(content)):
        kind = block["type"]
        if "weir" in block:
            return "a member weir"
        if kind == "text" and not block["text"].strip():
            return f"content.{place}: text content blocks must contain non-whitespace text"
        if role == "system" and kind != "text":
            return f"content.{place}: {kind} of the system"
        if role == "user" and (kind in ("tool_use", "server_tool_use", "thinking", "mcp_tool_use") or kind in SERVER_RESULTS.values()):
            return f"content.{place}: {kind} of the user"
        if role == "assistant" and kind in ("tool_result", "document", "image"):
            return f"content.{place}: {kind} of the assistant"
        if kind.endswith("tool_use") and (not ID.match(block["id"]) or not isinstance(block["input"], dict)):
            return f"content.{place}: {kind} of a wrong form"
        if kind == "tool_result" and not isinstance(block.get("content", ""), (str, list)):
            return f"content.{place}: a result of a wrong form"
    return None


def order_fault(messages):
    if messages[0]["role"] != "user":
        return f"{messages[0]['role']} first"
    for place, message in enumerate(messages):
        if message["role"] != "system":
            continue
        # platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages
        after = next((other["role"] for other in messages[place + 1 :] if other["role"] != "system"), None)
        if messages[place - 1]["role"] == "assistant":
            return f"messages.{place}: a system message behind the assistant's"
        if after == "user":
            return f"messages.{place}: a system message in front of the user's"
    return None


def client_fault(messages):
    """Results stand first in the message behind their calls, one for each."""
    seen, due = set(), []
    for place, message in enumerate(messages):
        if message["role"] == "system":
            if due:
                return f"messages.{place}: a system message where results of {due} are due"
            continue
        found, others = [], False
        for block in message["content"]:
            if block["type"] != "tool_result":
                others = True
            elif others:
                return f"messages.{place}: tool_result after other blocks"
            else:
                found.append(block["tool_use_id"])
        stray = [name for name in found if name not in due]
        if stray or len(found) != len(set(found)):
            return f"messages.{place}: unexpected tool_use_id in tool_result blocks: {stray or found}"
        if set(due) - set(found):
            return f"messages.{place}: tool_use ids were found without tool_result blocks immediately after: {sorted(set(due) - set(found))}"
        due = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if seen & set(due) or len(due) != len(set(due)):
            return f"messages.{place}: tool_use ids must be unique"
        seen |= set(due)
    return f"no tool_result for {due}" if due else None


def server_fault(messages):
    """A server's call has its result in its message or a later one; only the newest may still wait."""
    waiting, known = {}, set()
    last = messages[-1] if messages[-1]["role"] != "system" else messages[-2]
    for place, message in enumerate(messages):
        for block in message["content"]:
            kind = block["type"]
            if kind in ("server_tool_use", "mcp_tool_use"):
                if block["id"] in known:
                    return f"messages.{place}: two server tools of one id {block['id']}"
                expected = "mcp_tool_result" if kind == "mcp_tool_use" else SERVER_RESULTS[block["name"]]
                waiting[block["id"]] = (expected, place)
                known.add(block["id"])
            elif kind.endswith(RESULT) and kind != "tool_result":
                if waiting.pop(block["tool_use_id"], (None,))[0] != kind:
                    return f"messages.{place}: unexpected tool_use_id in {kind} blocks: {block['tool_use_id']}, no call before it"
            elif kind == "tool_use" and "caller" in block and block["caller"].get("tool_id") not in known:
                return f"messages.{place}: caller.tool_id {block['caller'].get('tool_id')} names no call before it"
        if message["role"] == "user" and any(block["type"] != "tool_result" for block in message["content"]):
            reminder = all(block["type"] in ("tool_result", "text") for block in message["content"]) and message["content"][0]["type"] == "tool_result"
            if waiting and not reminder:
                return f"messages.{place}: {sorted(waiting)} was found without its result block"
    if waiting and last["role"] == "assistant" and not all(place == len(messages) - 1 or messages[-1]["role"] == "system" for _, place in waiting.values()):
        return f"{sorted(waiting)} was found without its result block"
    return None


def deferred_fault(body, messages):
    tools = {tool["name"]: tool for tool in body.get("tools", [])}
    if tools and all(tool.get("defer_loading") for tool in tools.values()):
        return "all tools are deferred"
    loaded = set()
    for place, message in enumerate(messages):
        for block in all_blocks(message["content"]):
            if block["type"] == "tool_reference":
                if block["tool_name"] not in tools:
                    return f"messages.{place}: tool_reference {block['tool_name']} not found in tools"
                loaded.add(block["tool_name"])
            elif block["type"] == "tool_use" and block["name"] not in loaded:
                if block["name"] not in tools or tools[block["name"]].get("defer_loading"):
                    return f"messages.{place}: a call of {block['name']}, which is not loaded"
    return None


def mark_fault(body):
    """At most four marks, and longer lifetimes first, in the order tools, system, messages."""
    holders = [*body.get("tools", []), *blocks_of(body.get("system", "")), *all_blocks([message["content"] for message in body["messages"] if not isinstance(message["content"], str)])]
    marks = [holder["cache_control"] for holder in holders if isinstance(holder.get("cache_control"), dict)]
    if len(marks) > MAX_MARKS:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
    if any(holder.get("cache_control") and (holder["type"] in ("thinking", "redacted_thinking")) for holder in holders if "type" in holder):
        return "a cache mark on thinking"
    lifetimes = [mark.get("ttl", "5m") for mark in marks]
    if "1h" in lifetimes[lifetimes.index("5m") :] if "5m" in lifetimes else False:
        return f"a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block: {lifetimes}"
    return None


def signature(body, place):
    """Over system, tools and all before, without marks; the billing header is no part of it."""
    system = [block for block in blocks_of(body.get("system", "")) if not block["text"].startswith(BILLING)]
    mac = hmac.new(b"judge", digestmod=hashlib.sha256)
    mac.update(canonical([system, body.get("tools", [])], MARK).encode())
    for message in body["messages"][:place]:
        mac.update(canonical([message["role"], blocks_of(message["content"])], MARK).encode())
    return base64.b64encode(mac.digest() * 3).decode()


def thinking_fault(body, made, is_sent):
    for place, message in enumerate(body["messages"]):
        for block in blocks_of(message["content"]):
            if block["type"] != "thinking":
                continue
            if block["signature"] not in made.opaque:
                return f"messages.{place}: Invalid `signature` in `thinking` block"
            if is_sent and made.model == BOUND and block["signature"] != signature(body, place):
                return f"messages.{place}: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
    return None


def items(body):
    return [canonical([message["role"], blocks_of(message["content"])], MARK) for message in body["messages"]]


def answer(body, total, made):
    content = [{"type": "text", "text": "I go on."}]
    if "thinking" in body:
        sealed = signature(body, len(body["messages"]))
        made.opaque.add(sealed)
        content.insert(0, {"type": "thinking", "thinking": f"Thought {len(body['messages'])} of the plan.", "signature": sealed})
    usage = {"input_tokens": total, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 5}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    if not body.get("stream"):
        return whole
    events = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    for index, block in enumerate(content):
        empty = {"type": "text", "text": ""} if block["type"] == "text" else {"type": "thinking", "thinking": "", "signature": ""}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        for name in ("thinking", "signature", "text"):
            if name in block:
                events.append({"type": "content_block_delta", "index": index, "delta": {"type": f"{name}_delta", name: block[name]}})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}})
    events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def ended(text):
    return '"type":"message_stop"' in text.replace(" ", "")[-200:]


def error(message):
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def learn(made, number, text, is_stream):
    """The thinking of an answer returns in front of what the agent keeps of that answer."""
    place = made.cuts[number]
    if place >= len(made.log) or made.log[place]["role"] != "assistant" or "thinking" not in made.head:
        return
    if made.log[place - 1]["role"] == "assistant":
        return
    if is_stream:
        deltas = [json.loads(line[6:]).get("delta", {}) for line in text.splitlines() if line.startswith("data: ")]
        block = {name: "".join(delta.get(name, "") for delta in deltas if delta.get("type") == f"{name}_delta") for name in ("thinking", "signature")}
    else:
        block = json.loads(text)["content"][0]
    message = made.log[place]
    thought = {"type": "thinking", "thinking": block["thinking"], "signature": block["signature"]}
    made.log[place] = {**message, "content": [thought, *blocks_of(message["content"])]}
