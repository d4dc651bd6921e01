#!/usr/bin/env python3
"""Stands between an unmodified agent and weir, and gives its requests shapes that others send.

    shim.py COMMAND…      runs the command with its base URLs led through here

What is added to a message depends on the messages before it alone, so requests grow as an agent's
own do: a system or developer message after each round, a first text that changes with each request,
servers' tools whose results come later, calls answered after others, deferred tools and their loads.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

DEFERRED = 30
requests = 0


def schema(number):
    names = [f"level_{number}_{place}" for place in range(6)]
    return {"type": "object", "properties": {name: {"type": "string", "description": f"The {name} of the gauge, in millimetres above the sill."} for name in names}}


def describe(number):
    return f"Reads gauge {number}, which stands at the upper gate of the river behind weir {number}, and returns its levels."


def remaining(number):
    return f"Token usage: {number * 1013}/200000; {200_000 - number * 1013} remaining"


def messages(body):
    """Anthropic's Messages."""
    system = body.get("system", [])
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    body["system"] = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.9; cch={requests:05x};"}, *blocks]
    body["tools"] += [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}, {"type": "advisor_20260301", "name": "advisor", "model": body["model"]}]
    body["tools"] += [{"name": f"gauge_{n}", "description": describe(n), "input_schema": schema(n), "defer_loading": True} for n in range(DEFERRED)]
    made, due, advice, rounds, loaded = [], [], [], 0, None
    for message in body["messages"]:
        content = message["content"] if isinstance(message["content"], list) else [{"type": "text", "text": message["content"]}]
        kinds = [block["type"] for block in content]
        if message["role"] == "assistant":
            begin = sum(1 for kind in kinds if "thinking" in kind)
            content = content[:begin] + advice + content[begin:]
            advice = []
        if message["role"] == "assistant" and "tool_use" in kinds:
            rounds += 1
            call = next(place for place, block in enumerate(content) if block["type"] == "tool_use")
            front, back = [], []
            if rounds % 5 == 1:
                front.append({"type": "server_tool_use", "id": f"srvtoolu_a{rounds}", "name": "advisor", "input": {}})
                advice = [{"type": "advisor_tool_result", "tool_use_id": f"srvtoolu_a{rounds}", "content": {"type": "advisor_result", "text": f"Go on with part {rounds}; its gauge is at {rounds * 37} mm."}}]
            if rounds % 20 == 2:
                loaded = f"gauge_{rounds % DEFERRED}"
                found = {"type": "tool_search_tool_search_result", "tool_references": [{"type": "tool_reference", "tool_name": loaded}]}
                front += [
                    {"type": "server_tool_use", "id": f"srvtoolu_s{rounds}", "name": "tool_search_tool_regex", "input": {"query": loaded}},
                    {"type": "tool_search_tool_result", "tool_use_id": f"srvtoolu_s{rounds}", "content": found},
                ]
            if rounds % 4 == 3 and loaded:
                back = [{"type": "tool_use", "id": f"toolu_g{rounds}", "name": loaded, "input": {"level": str(rounds)}}]
                due = [{"type": "tool_result", "tool_use_id": f"toolu_g{rounds}", "content": f"The gauge shows {rounds * 91} mm."}]
            content = [*content[:call], *front, *content[call:], *back]
        elif message["role"] == "user" and "tool_result" in kinds:
            last = max(place for place, kind in enumerate(kinds) if kind == "tool_result") + 1
            content = content[:last] + due + content[last:]
            due = []
        made.append({**message, "content": content})
        if message["role"] == "user" and "tool_result" in kinds:
            made.append({"role": "system", "content": remaining(rounds)})
    body["messages"] = made


def responses(body):
    """OpenAI's Responses."""
    body["instructions"] = f"Session counter {requests}.\n{body.get('instructions') or ''}"
    tools = [{"type": "function", "name": f"gauge_{n}", "description": describe(n), "parameters": schema(n), "strict": False, "defer_loading": True} for n in range(DEFERRED)]
    maps = {"type": "mcp", "server_label": "maps", "server_url": "https://example.com/mcp", "require_approval": "always"}
    body["tools"] = [*body.get("tools", []), {"type": "tool_search"}, maps, *tools]
    made, rounds, loaded, begin = [], 0, None, 0
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            begin = len(made) - (1 if made and made[-1].get("type") == "reasoning" else 0)
            latest = item
        made.append(item)
        if kind not in ("function_call_output", "custom_tool_call_output"):
            continue
        rounds += 1
        if rounds % 5 == 1:
            late = {**latest, "id": f"fc_late{rounds}", "call_id": f"call_late{rounds}"}
            made.insert(begin, late)
            made.append({"type": f"{late['type']}_output", "call_id": late["call_id"], "output": f"Done in the background: {rounds * 17} lines."})
        if rounds % 7 == 3:
            asked = {"type": "mcp_approval_request", "id": f"mcpr_{rounds}", "server_label": "maps", "name": "find", "arguments": "{}"}
            call = {"type": "mcp_call", "id": f"mcp_{rounds}", "server_label": "maps", "name": "find", "arguments": "{}", "approval_request_id": asked["id"]}
            made += [asked, {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}, {**call, "output": f"Part {rounds} is at the weir.", "error": None}]
        if rounds % 20 == 2:
            loaded = tools[rounds % DEFERRED]
            search = {"id": f"ts_{rounds}", "call_id": None, "execution": "server", "status": "completed"}
            made += [{"type": "tool_search_call", **search, "arguments": {"query": loaded["name"]}}, {"type": "tool_search_output", **search, "id": f"to_{rounds}", "tools": [loaded]}]
        if rounds % 4 == 3 and loaded:
            made += [
                {"type": "function_call", "id": f"fc_gauge{rounds}", "call_id": f"call_gauge{rounds}", "name": loaded["name"], "arguments": "{}", "status": "completed"},
                {"type": "function_call_output", "call_id": f"call_gauge{rounds}", "output": f"The gauge shows {rounds * 91} mm."},
            ]
        made.append({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": remaining(rounds)}]})
    body["input"] = made


def shaped(path, text):
    """The request's body with the shapes. Side requests, without tools, stay as they are."""
    global requests
    body = json.loads(text)
    maker = {"/v1/messages": messages, "/v1/responses": responses}.get(urlsplit(path).path)
    has_tools = body.get("tools") or (isinstance(body.get("input"), list) and any(item.get("type") == "additional_tools" for item in body["input"]))
    if maker is None or not has_tools:
        return text
    requests += 1
    maker(body)
    return json.dumps(body, ensure_ascii=False).encode()


class Handler(BaseHTTPRequestHandler):
    target = {}

    def relay(self):
        text = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.command == "POST" and text:
            text = shaped(self.path, text)
        is_messages = self.path.startswith("/v1/messages") or "anthropic-version" in self.headers
        target = self.target["ANTHROPIC_BASE_URL" if is_messages else "OPENAI_BASE_URL"]
        connection = http.client.HTTPConnection(target.netloc, timeout=600)
        skipped = ("host", "content-length", "accept-encoding", "connection", "transfer-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
        # weir's addresses begin with a secret of the run.
        entrance = target.path.removesuffix("/").removesuffix("/v1")
        connection.request(self.command, entrance + self.path, text or None, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()
        connection.close()
        self.close_connection = True

    do_GET = do_POST = do_HEAD = relay

    def log_message(self, *_arguments):
        """The agent's output stays its own."""


def main():
    command = sys.argv[1:]
    names = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
    Handler.target = {name: urlsplit(os.environ[name]) for name in names}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    environment = os.environ | {"OPENAI_BASE_URL": f"{here}/v1", "OPENAI_API_BASE": f"{here}/v1", "ANTHROPIC_BASE_URL": here}
    if os.path.basename(command[0]) == "codex":
        command[1:1] = ["-c", f'openai_base_url="{here}/v1"']
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
