#!/usr/bin/env python3
"""Sends one conversation of 40 messages with tool calls through each peer, and prints what arrives upstream.

    check.py FOLDER [PEER...]

FOLDER is the one that `install` has filled. Identity must change nothing; this fails otherwise.
"""

import contextlib
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__)).resolve()
if "TIKTOKEN_CACHE_DIR" not in os.environ:
    # The counter is installed there.
    os.environ["TIKTOKEN_CACHE_DIR"] = str(FOLDER / "tiktoken")
    python = str(FOLDER / "base" / "bin" / "python")
    os.execv(python, [python, *sys.argv])

import tokens
from peers import PEERS

LIMIT_TOKENS = 3_000
ANSWER = {"id": "a", "object": "chat.completion", "created": 0, "model": "gpt-4o"}
ANSWER |= {"usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}}


def completion(text):
    message = {"role": "assistant", "content": text}
    return ANSWER | {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}


class Upstream(http.server.BaseHTTPRequestHandler):
    """Records each completion asked for, and answers it."""

    protocol_version = "HTTP/1.1"
    bodies = []

    def do_GET(self):
        self.answer({"object": "list", "data": []})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.bodies.append(body)
        self.answer(completion("A summary of the work so far."))

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def conversation():
    """Returns a user's task and 18 rounds of a call and its result, with a second wish of the user in between."""
    messages = [
        {"role": "system", "content": "You repair programs. Never change the public interface."},
        {"role": "user", "content": "The parser fails on empty lines. Find out why, and repair it."},
    ]
    for number in range(18):
        call = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{number}.py", "first": 1})}
        text = f"I look at part {number} — the reader of the lines."
        calls = [{"id": f"call_{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        lines = [f"{line}: def part_{number}_{line}(text): return text.split({line})" for line in range(12)]
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": "\n".join(lines)})
        if number == 8:
            messages.append({"role": "assistant", "content": "Half of the parts are read."})
            messages.append({"role": "user", "content": "Go on, and look at the tests, too."})
    return messages


def faults(messages):
    """Returns where the messages break the rules of chat completions."""
    found, open_calls = [], set()
    turns = [message for message in messages if message["role"] not in ("system", "developer")]
    if not turns or turns[0]["role"] == "tool":
        found.append("begins with a result" if turns else "empty")
    for message in turns:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                found.append("result without its call")
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            found.append("call without its result")
        open_calls = {call["id"] for call in message.get("tool_calls") or []}
    return sorted(set(found))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def post(port, body):
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@contextlib.contextmanager
def running(folder, peer, upstream_port):
    """Starts a peer in an empty folder and waits until it answers."""
    port = free_port()
    with tempfile.TemporaryDirectory() as state, open(os.path.join(state, "log"), "w+") as log:
        environment = os.environ | {
            "UPSTREAM_URL": f"http://127.0.0.1:{upstream_port}/v1",
            "PORT": str(port),
            "LIMIT_TOKENS": str(LIMIT_TOKENS),
        }
        command = [HERE / "run", folder, peer]
        process = subprocess.Popen(command, cwd=state, env=environment, stderr=log, stdout=log, start_new_session=True)
        try:
            began = time.monotonic()
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"):
                    break
                if process.poll() is not None or time.monotonic() - began > 90:
                    log.seek(0)
                    raise RuntimeError(f"{peer} does not start:\n{log.read()[-2000:]}")
                time.sleep(0.05)
            yield port, time.monotonic() - began
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def check(folder, peer, upstream_port):
    """Sends the growing conversation, and returns a row of the table."""
    messages = conversation()
    sizes, broken, extra, refused, grown = [], set(), 0, [], 0
    before, over = None, 0
    with running(folder, peer, upstream_port) as (port, start_seconds):
        points = [number for number, message in enumerate(messages, 1) if message["role"] in ("user", "tool")]
        for point in points:
            body = json.dumps({"model": "gpt-4o", "messages": messages[:point]}, ensure_ascii=False).encode()
            Upstream.bodies.clear()
            status, answer = post(port, body)
            if status != 200:
                refused.append(answer.decode()[:200])
                continue
            extra += len(Upstream.bodies) - 1
            sent = Upstream.bodies[-1]
            if peer == "identity" and sent != body:
                sys.exit("identity changed a request")
            after = json.loads(sent)["messages"]
            broken |= set(faults(after))
            grown += before is not None and after[: len(before)] == before
            before = after
            request = json.loads(sent)
            sizes.append(tokens.of_messages(after) + tokens.of_tools(request.get("tools")))
            over += sizes[-1] > LIMIT_TOKENS
    row = [peer, f"{start_seconds:.1f}", len(points), len(refused), extra, grown, over]
    row += [sizes[-1], max(sizes)] if sizes else ["-", "-"]
    return row + [", ".join(sorted(broken)) or "no"], refused


def main():
    folder, *chosen = sys.argv[1:]
    size = tokens.of_messages(conversation())
    print(f"{size} tokens, at a limit of {LIMIT_TOKENS}:\n")
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    print("| peer | start s | requests | refused | extra calls | grown | over | last tokens | most tokens | faults |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for peer in chosen or PEERS:
        try:
            row, refused = check(folder, peer, upstream.server_port)
        except RuntimeError as error:
            row, refused = [peer] + ["-"] * 9, [str(error)]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        for answer in sorted(set(refused))[:3]:
            print(f"  {peer}: {answer}", file=sys.stderr)


if __name__ == "__main__":
    main()
