#!/usr/bin/env python3
"""Measures what heavy requests cost weir: CPU seconds and memory, for each MB of their bodies.

    tests/hostile/run.py                        all shapes in one vocabulary each, with target/release/weir
    tests/hostile/run.py --all                  all shapes in all vocabularies
    tests/hostile/run.py --only "random letters" --binary PATH

Each request gets a weir of its own, whose vocabulary a small request has loaded. `/proc` has the
figures, so this runs on Linux alone. Time and memory above the goals end with exit code 1.
"""

import argparse
import gzip
import http.client
import http.server
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = {
    "o200k": "gpt-4o",
    "cl100k": "gpt-4-turbo",
    "qwen2": "qwen3-32b",
    "deepseek_v3": "deepseek-chat",
    "mistral_v3": "open-mistral-nemo",
    "estimated": "claude-sonnet-4-5",
}
LIMIT_TOKENS = 4000
CPU_SECONDS_GOAL, MEMORY_MB_GOAL = 0.6, 60.0
RUNS = 3
TICKS = os.sysconf("SC_CLK_TCK")
CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
[upstream]
url = "{upstream}"
[store]
path = "{folder}/weir.db"
"""
WORDS = "gate level river water pump valve flow north south east west upper lower main list open close check".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def picked(alphabet, length):
    return lambda chance: "".join(chance.choices(alphabet, k=length))


def lines(line):
    return lambda chance: "\n".join(line(chance, number) for number in range(40)) + "\n"


# Each writes a stretch of text; a text of any size is made of different stretches.
KINDS = {
    "one letter": lambda chance: "a" * 4000,
    "random letters": picked(LETTERS, 4000),
    "mixed case": picked(LETTERS + LETTERS.upper(), 4000),
    "short words": picked(LETTERS + "     ", 4000),
    "words": lambda chance: " ".join(chance.choices(WORDS, k=600)) + " ",
    "digits": picked("0123456789", 4000),
    "numbers": lines(lambda chance, _: " ".join(str(chance.randrange(10**6)) for _ in range(12))),
    "base64": picked(LETTERS + LETTERS.upper() + "0123456789+/", 4000),
    "signs": picked("!@#$%^&*()_+-=[]{};:,.<>/?|~", 4000),
    "blanks": picked(" \t\n", 4000),
    "control": picked("\x01\x02\x1f\x7f\x00", 2000),
    "escapes": picked('\n\t"\\\r', 4000),
    "han": lambda chance: "".join(chr(chance.randrange(0x4E00, 0x9FA5)) for _ in range(1300)),
    "cyrillic": picked("абвгдежзийклмнопрстуфхцчшщъыьэюя ", 2000),
    "marks": picked("e\u0301\u0302\u0323a\u0308", 2000),
    "emoji": picked("😀👩\u200d👧🏽\ufe0f🇩🇪", 1000),
    "unnamed": picked("\u200b\u200d\u00ad\ue000\u0378 ", 1300),
    "paths": lines(lambda chance, _: f"src/{chance.choice(WORDS)}/{chance.choice(WORDS)}_{chance.randrange(10**5)}.rs:{chance.randrange(900)}: warning"),
    "identifiers": lines(lambda chance, _: " ".join(f"{chance.choice(WORDS)}_{chance.randrange(16**6):06x}" for _ in range(8))),
    "hashes": lines(lambda chance, _: f"{chance.randrange(16**40):040x} {chance.choice(WORDS)}"),
    "tasks": lines(lambda chance, number: f"- [{' x'[number % 3 == 0]}] {number}. {chance.choice(WORDS)} {chance.choice(WORDS)} {chance.randrange(10**4)}"),
    "rules": lines(lambda chance, _: f"Never {chance.choice(WORDS)} the {chance.choice(WORDS)}; always {chance.choice(WORDS)} {chance.randrange(10**4)}."),
    "errors": lines(lambda chance, _: f"error[E{chance.randrange(10**4)}]: {chance.choice(WORDS)} failed at {chance.choice(WORDS)}.py:{chance.randrange(999)}"),
    "compared": lines(lambda chance, number: f"assertion failed\n  left: {chance.randrange(10**6)}\n right: {chance.randrange(10**6)}"),
    "changes": lines(lambda chance, number: f"{'+-'[number % 2]} let {chance.choice(WORDS)}_{chance.randrange(10**4)} = {chance.choice(WORDS)}();"),
    "shell": lines(lambda chance, _: f"cd {chance.choice(WORDS)} && sed -i 's/{chance.choice(WORDS)}/x/' \"$(ls {chance.choice(WORDS)} | head -n {chance.randrange(99)})\""),
    "addresses": lines(lambda chance, _: f"https://{chance.choice(WORDS)}.example/{chance.randrange(10**6)}?q={chance.choice(WORDS)}"),
    "members": lines(lambda chance, _: json.dumps({chance.choice(WORDS): {chance.choice(WORDS): chance.randrange(10**6)}})),
    "nested": lambda chance: '{"a":[' * 100 + "1" + "]}" * 100 + "\n",
    "short lines": lines(lambda chance, _: chance.choice(LETTERS)),
    "one line again": lambda chance: "the weir holds the water back\n" * 100,
}


def text(kind, size, chance):
    parts, have = [], 0
    while have < size:
        part = KINDS[kind](chance)
        parts.append(part)
        have += len(part.encode())
    return "".join(parts).encode()[:size].decode(errors="ignore")


def pieces(kind, size, count, chance):
    """So many texts of one kind, `size` bytes in all."""
    whole = text(kind, size, chance)
    step = max(1, len(whole) // count)
    return [whole[at : at + step] for at in range(0, step * count, step)]


# A conversation is a list of (role, text), and of ("call", arguments, result).
ASKED = ("user", "Find the fault.")


def clipped(kind, size, chance):
    return [ASKED, ("call", {"path": "a"}, text(kind, size, chance))]


def results(kind, size, chance):
    return [ASKED, *(("call", {"path": f"src/{number}.rs"}, part) for number, part in enumerate(pieces(kind, size, 60, chance)))]


def arguments(kind, size, chance):
    return [ASKED, *(("call", {"command": part}, "done") for part in pieces(kind, size, 60, chance))]


def dialogue(kind, size, chance, messages=200):
    parts = pieces(kind, size, messages, chance)
    return [*((("user", "assistant")[number % 2], part) for number, part in enumerate(parts)), ASKED]


def tiny(kind, size, chance):
    """As many messages as weir takes, `size` bytes with their frames."""
    return dialogue(kind, max(size - 19_000 * 33, 19_000 * 4), chance, 19_000)


TINY = ("one letter", "random letters", "words", "digits", "han", "paths", "tasks", "rules", "errors", "shell")


def shapes():
    """Every kind in every layout, each with a number that the protocol and the form follow from."""
    for place, kind in enumerate(KINDS):
        for turn, layout in enumerate((clipped, results, arguments, dialogue)):
            yield kind, layout, place + turn
    for turn, kind in enumerate(TINY):
        yield kind, tiny, turn


def chat(role, number, first, second=None):
    if role != "call":
        return [{"role": role, "content": first}]
    call = {"id": f"c{number}", "type": "function", "function": {"name": "bash", "arguments": json.dumps(first)}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": f"c{number}", "content": second}]


def responses(role, number, first, second=None):
    if role != "call":
        return [{"role": role, "content": first}]
    own = {"call_id": f"c{number}"}
    return [{"type": "function_call", "name": "bash", "arguments": json.dumps(first), **own}, {"type": "function_call_output", "output": second, **own}]


def messages(role, number, first, second=None):
    if role != "call":
        return [{"role": role, "content": first}]
    call = {"type": "tool_use", "id": f"c{number}", "name": "bash", "input": first}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": second}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


# Of each path: how a part of a conversation is written, the member that holds them, and other members.
PROTOCOLS = {
    "/v1/chat/completions": (chat, "messages", {"tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]}),
    "/v1/responses": (responses, "input", {"store": False, "tools": [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]}),
    "/v1/messages": (messages, "messages", {"max_tokens": 100, "tools": [{"name": "bash", "input_schema": {"type": "object"}}]}),
}


def body(path, made, model, is_streamed):
    write, name, others = PROTOCOLS[path]
    parts = [part for number, (role, *rest) in enumerate(made) for part in write(role, number, *rest)]
    return json.dumps({"model": model, "stream": is_streamed, **others, name: parts}, ensure_ascii=False).encode()


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer_bytes = 0

    def log_message(self, *_):
        pass

    def do_POST(self):
        text = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(gzip.decompress(text) if self.headers["content-encoding"] == "gzip" else text)
        is_streamed = body.get("stream", False)
        answer = answered(self.path, is_streamed, self.answer_bytes)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if is_streamed else "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


ANSWERS = {
    "/v1/chat/completions": (
        {"id": "r", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ),
    "/v1/responses": (
        {"id": "r", "object": "response", "status": "completed", "output": []},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "a"},
        {"type": "response.completed", "response": {"id": "r", "object": "response", "status": "completed", "output": []}},
    ),
    "/v1/messages": (
        {"id": "r", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "ok"}], "stop_reason": "end_turn"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_stop"},
    ),
}


def answered(path, is_streamed, size):
    """An answer, or events of one token each, some `size` bytes in all."""
    whole, *events = ANSWERS[path]
    if not is_streamed:
        return json.dumps(whole).encode()
    piece, last = (f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n".encode() for event in events)
    return piece * (size // len(piece)) + last


class Weir:
    """A weir of its own, with its figures."""

    def __init__(self, binary, upstream, folder):
        file = Path(folder) / "weir.toml"
        file.write_text(CONFIGURATION.format(upstream=upstream, folder=folder))
        self._process = subprocess.Popen(
            [binary, "serve", "--config", file, "--log-format", "json"], stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": folder}
        )
        for line in self._process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line.replace(upstream, "")):
                self.port = int(found.group(1))
                break
        else:
            raise SystemExit("weir did not start")
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def stop(self):
        self._process.kill()
        self._process.wait()
        self._process.stderr.close()

    def _proc(self, name):
        return Path(f"/proc/{self._process.pid}/{name}")

    def cpu_seconds(self):
        fields = self._proc("stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mb(self, name):
        return int(re.search(rf"{name}:\s+(\d+) kB", self._proc("status").read_text()).group(1)) / 1024

    def forget_peak(self):
        self._proc("clear_refs").write_text("5")

    def post(self, path, text, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", path, text, {"content-type": "application/json", "authorization": "Bearer k", "x-api-key": "k", **headers})
        answer = connection.getresponse()
        size = len(answer.read())
        connection.close()
        return answer.status, answer.headers.get("x-weir-action", answer.headers.get("x-weir-error", "")), size


def measured(options, upstream, shape):
    kind, layout, vocabulary, turn = shape
    path = list(PROTOCOLS)[turn % 3]
    model, is_streamed, is_packed = MODELS[vocabulary], turn % 2 == 1, turn % 5 < 2
    made = layout(kind, options.size, random.Random(turn)) if layout else [("user", "a")]
    text = body(path, made, model, is_streamed)
    Upstream.answer_bytes = options.size if layout is None else 0
    headers = {"x-weir-max-input-tokens": str(LIMIT_TOKENS)}
    with tempfile.TemporaryDirectory() as folder:
        weir = Weir(options.binary, upstream, folder)
        try:
            weir.post(path, body(path, dialogue("words", 40_000, random.Random(0)), model, False), headers)
            sent, headers = (gzip.compress(text), {**headers, "content-encoding": "gzip"}) if is_packed else (text, headers)
            weir.forget_peak()
            memory, seconds = weir.memory_mb("VmRSS"), weir.cpu_seconds()
            status, action, answer_bytes = weir.post(path, sent, headers)
            seconds, memory = weir.cpu_seconds() - seconds, weir.memory_mb("VmHWM") - memory
        finally:
            weir.stop()
    size = (len(text) + answer_bytes) / 1e6
    name = f"{kind}, {layout.__name__ if layout else 'answer'}"
    form = path.rpartition("/")[2] + (", gzip" if is_packed else "") + (", stream" if is_streamed else "")
    return seconds / size, memory / size, name, vocabulary, form, f"{status} {action}", size


def least(options, upstream, shape):
    """The least of a few runs if the first is above a goal: other work on the machine makes both figures higher."""
    rows = [measured(options, upstream, shape)]
    while len(rows) < RUNS and (rows[-1][0] > CPU_SECONDS_GOAL or rows[-1][1] > MEMORY_MB_GOAL):
        rows.append(measured(options, upstream, shape))
    return min(row[0] for row in rows), min(row[1] for row in rows), *rows[-1][2:]


def chosen(options):
    vocabularies = list(MODELS)
    for kind, layout, turn in shapes():
        for step in range(len(vocabularies) if options.all else 1):
            yield kind, layout, vocabularies[(turn + step) % len(vocabularies)], turn + step
    for turn, vocabulary in enumerate(vocabularies):
        yield "stream", None, vocabulary, 2 * turn + 1


def show(title, rows):
    print(f"\n{title}\n\n| CPU s/MB | memory MB/MB | shape | vocabulary | request | answer | MB |\n|---|---|---|---|---|---|---|")
    for seconds, memory, *names, size in rows:
        print(f"| {seconds:.2f} | {memory:.1f} | {' | '.join(names)} | {size:.2f} |")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", default=REPOSITORY / "target" / "release" / "weir")
    options.add_argument("--size", type=int, default=1_000_000, help="bytes of content of each request")
    options.add_argument("--all", action="store_true", help="every shape in every vocabulary")
    options.add_argument("--only", default="", help="kinds or layouts whose name has this text")
    options.add_argument("--worst", type=int, default=15, help="rows of each table")
    options = options.parse_args()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    upstream = f"http://127.0.0.1:{server.server_port}/v1"
    rows = []
    for shape in chosen(options):
        name = f"{shape[0]}, {shape[1].__name__ if shape[1] else 'answer'}"
        if options.only in name:
            rows.append(least(options, upstream, shape))
            print(f"\r{len(rows)}", end="", file=sys.stderr, flush=True)
    show("By CPU", sorted(rows, key=lambda row: -row[0])[: options.worst])
    show("By memory", sorted(rows, key=lambda row: -row[1])[: options.worst])
    above = sum(row[0] > CPU_SECONDS_GOAL or row[1] > MEMORY_MB_GOAL for row in rows)
    print(f"\n{len(rows)} shapes, {above} above {CPU_SECONDS_GOAL} CPU-s or {MEMORY_MB_GOAL:.0f} MB per MB")
    sys.exit(above > 0)


if __name__ == "__main__":
    main()
