#!/usr/bin/env python3
"""Sends conversations as agents write them through a real weir to a judge, and counts what is wrong.

The judge stands where the provider does, decides as each provider documents, and shares no code with
weir. Every number makes the same conversation again:

    tests/shapes/run.py                          some conversations of each protocol
    tests/shapes/run.py messages --count 10000   so many
    tests/shapes/run.py messages --seed 17 --only --keep DIR   one, with what was sent and received
"""

import argparse
import asyncio
import collections
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chat
import messages
import responses

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BINARIES = Path(os.environ.get("WEIR_TEST_BINARIES", REPOSITORY / "target" / "debug"))
PROTOCOLS = {"chat": chat, "responses": responses, "messages": messages}
WORKERS = 6
ANSWER_SECONDS = 120
# weir's count as a share of the judge's lower and upper bounds. Models without a public tokenizer
# get an estimate, which is high on purpose.
LEAST, MOST = 0.95, 1.8


class Closed(Exception):
    """The other side closed the connection."""


async def read_head(reader):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Closed from error
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            headers[name.lower()] = value.strip()
    return first, headers


async def read_body(reader, headers):
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts = []
        while True:
            length = int((await reader.readline()).split(b";")[0], 16)
            parts.append(await reader.readexactly(length))
            await reader.readexactly(2)
            if length == 0:
                return b"".join(parts)
    return await reader.readexactly(int(headers.get("content-length", 0)))


class Upstream:
    """Judges each request, and answers it. A conversation is known by its caller's key."""

    def __init__(self):
        self.live = {}

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def _serve(self, reader, writer):
        try:
            while True:
                first, headers = await read_head(reader)
                text = await read_body(reader, headers)
                key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
                status, kind, answer = self._answer(first, key, text)
                head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(head.encode() + answer)
                await writer.drain()
        except (Closed, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, first, key, text):
        if key not in self.live:
            return 404, "application/json", b'{"error":{"message":"not here"}}'
        play = self.live[key]
        protocol, made = play.protocol, play.made
        body = json.loads(text)
        total = protocol.count(body)
        try:
            wrong = protocol.judge(body, made)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            wrong = f"a form that the judge does not know: {error!r}"
        play.judged(body, total, wrong)
        if wrong:
            return 400, "application/json", json.dumps(protocol.error(wrong)).encode()
        answer = protocol.answer(body, total, made)
        if isinstance(answer, str):
            return 200, "text/event-stream", answer.encode()
        return 200, "application/json", json.dumps(answer).encode()


# Items of what is sent, from the end, among which the results of the last message received stand.
LAST_ITEMS = 12


def end_of(body):
    """The last messages, without notices of the system."""
    items = body["messages"] if "messages" in body else body["input"]
    return [item for item in items if item.get("role") not in ("system", "developer")][-LAST_ITEMS:]


def answered_calls(value):
    """The calls whose results stand in a value."""
    if isinstance(value, list):
        return set().union(*map(answered_calls, value))
    if not isinstance(value, dict):
        return set()
    names = ["tool_call_id", "tool_use_id"] + ["call_id"] * str(value.get("type")).endswith("_output")
    return {value[name] for name in names if value.get(name)} | answered_calls(value.get("content"))


class Play:
    """One conversation on its way, and what was seen of it."""

    def __init__(self, name, made):
        self.protocol = PROTOCOLS[name]
        self.made = made
        self.faults = []
        self.end = set()
        self.sent = []
        self.number = 0
        self.rewrites = 0
        self.before = []
        self.requests = 0
        self.compacted = 0
        self.counts = []
        self.miscounted = []
        self.kept = []

    def judged(self, body, total, wrong):
        self.sent.append(body)
        if wrong:
            self.fault("invalid", wrong)
        elif total > self.made.limit:
            self.fault("above", f"{total} tokens of {self.made.limit}")
        elif not self.end <= answered_calls(end_of(body)):
            self.fault("lost", f"the result of a call at the end, one of {sorted(self.end)}")
        now = self.protocol.items(body)
        if now[: len(self.before)] != self.before:
            self.rewrites += 1
        self.before = now

    def counted(self, tokens, least, most):
        self.counts.append((tokens, least))
        if not least * LEAST <= tokens <= most * MOST + 500:
            self.miscounted.append(f"{tokens} tokens, where the judge counts {least} to {most}")

    def fault(self, kind, text):
        self.faults.append((kind, self.number, text))


class Caller:
    """A caller with a connection that it keeps."""

    def __init__(self, port):
        self.port = port
        self._stream = None

    async def post(self, path, headers, body):
        text = json.dumps(body).encode()
        lines = {"host": "127.0.0.1", "content-type": "application/json", "content-length": len(text), **headers}
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        for _ in range(2):
            if self._stream is None:
                self._stream = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
            reader, writer = self._stream
            try:
                writer.write(head.encode() + text)
                await writer.drain()
                first, answered = await read_head(reader)
                return int(first.split()[1]), answered, (await read_body(reader, answered)).decode()
            except (Closed, ConnectionError, asyncio.IncompleteReadError):
                writer.close()
                self._stream = None
        return 0, {}, "the connection was closed"


async def drive(play, caller, key):
    protocol, made = play.protocol, play.made
    for number in range(len(made.cuts)):
        play.number = number
        body = protocol.body(made, number)
        own = protocol.judge(body, made, is_sent=False)
        if own:
            raise SystemExit(f"{made.protocol} seed {made.seed}: the generator wrote a request that its judge refuses: {own}")
        headers = {"authorization": f"Bearer {key}", "x-weir-max-input-tokens": made.limit}
        if made.protocol == "messages":
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01", "x-weir-max-input-tokens": made.limit}
        seen = len(play.faults)
        sent = len(play.sent)
        play.end = answered_calls(end_of(body)[-1:])
        status, answered, text = await asyncio.wait_for(caller.post(protocol.PATH, headers, body), ANSWER_SECONDS)
        play.requests += 1
        if answered.get("x-weir-action", "pass") != "pass":
            play.compacted += 1
        if "x-weir-received-tokens" in answered:
            play.counted(int(answered["x-weir-received-tokens"]), protocol.count(body), protocol.most(body))
        if status != 200:
            if len(play.faults) == seen:
                play.fault("refused", f"{status} {answered.get('x-weir-error')}: {text[:300]}")
        elif made.streams[number] and not protocol.ended(text):
            play.fault("cut", f"a stream without its end: {text[-200:]}")
        play.kept.append((body, answered, text, play.sent[sent:]))
        if len(play.faults) > seen:
            return
        protocol.learn(made, number, text, made.streams[number])


def generated(name, seed, asked):
    shapes = asked.shape or None
    return PROTOCOLS[name].generate(seed, shapes, asked.requests)


async def play_all(name, port, upstream, asked, totals):
    first = asked.seed
    seeds = iter([first]) if asked.only else iter(range(first, first + asked.count)) if asked.count else itertools.count(first)
    began = time.monotonic()

    async def work():
        caller = Caller(port)
        for seed in seeds:
            if asked.seconds and time.monotonic() - began > asked.seconds:
                return
            made = generated(name, seed, asked)
            if set(made.shapes) & set(asked.without):
                continue
            play = Play(name, made)
            key = f"sk-{name}-{seed}"
            upstream.live[key] = play
            try:
                await drive(play, caller, key)
            except asyncio.TimeoutError:
                play.fault("hung", "no answer")
                caller = Caller(port)
            del upstream.live[key]
            totals.add(play)
            if asked.keep:
                keep(play, asked.keep)
            for kind, number, text in play.faults:
                print(f"{name} seed {seed} request {number + 1} of {len(made.cuts)} {kind} [{','.join(made.shapes)}] {made.model}: {text}"[:600], flush=True)

    await asyncio.gather(*[work() for _ in range(WORKERS)])


def keep(play, folder):
    folder.mkdir(parents=True, exist_ok=True)
    made = play.made
    for number, (body, answered, text, sent) in enumerate(play.kept):
        place = folder / f"{made.protocol}-{made.seed}-{number + 1}.json"
        place.write_text(json.dumps({"limit": made.limit, "received": body, "sent": sent, "headers": answered, "answer": text}, indent=1))


class Totals:
    COLUMNS = ["conversations", "requests", "compacted", "rewrites", "invalid", "above", "lost", "refused", "cut", "hung", "miscounted"]

    def __init__(self):
        self.all = collections.Counter()
        self.shapes = collections.defaultdict(collections.Counter)
        self.kinds = collections.defaultdict(list)
        self.ratios = collections.defaultdict(list)

    def add(self, play):
        for counter in [self.all, *[self.shapes[shape] for shape in play.made.shapes]]:
            counter["conversations"] += 1
            counter["requests"] += play.requests
            counter["compacted"] += play.compacted
            counter["rewrites"] += play.rewrites
            counter["miscounted"] += bool(play.miscounted)
            counter["failed"] += bool(play.faults)
            for kind, _, _ in play.faults:
                counter[kind] += 1
        for shape in play.made.shapes:
            self.ratios[shape] += [weir / max(1, own) for weir, own in play.counts[-1:]]
        faults = [*play.faults, *[("miscounted", 0, text) for text in play.miscounted[:1]]]
        for kind, _, text in faults:
            pattern = re.sub(r"'[^']*'|\d+|\w+_\w*x\w+", "…", text)[:110]
            self.kinds[kind, pattern].append((play.made.seed, play.made.shapes))

    def show(self, name):
        print(f"\n{name}: " + ", ".join(f"{self.all[column]} {column}" for column in self.COLUMNS))
        print(f"  {'shape':<18}" + "".join(f"{column:>14}" for column in self.COLUMNS) + "   counts (weir/judge)")
        for shape, counter in sorted(self.shapes.items()):
            ratios = sorted(self.ratios[shape])
            spread = f"{ratios[0]:.2f} {ratios[len(ratios) // 2]:.2f} {ratios[-1]:.2f}" if ratios else ""
            print(f"  {shape:<18}" + "".join(f"{counter[column]:>14}" for column in self.COLUMNS) + f"   {spread}")
        for (kind, pattern), seeds in sorted(self.kinds.items(), key=lambda item: -len(item[1])):
            shapes = collections.Counter(shape for _, some in seeds for shape in some)
            fewest = sorted(seeds, key=lambda item: (len(item[1]), item[0]))[:4]
            named = ", ".join(f"{seed} ({'+'.join(some)})" for seed, some in fewest)
            print(f"  {len(seeds):>5} × {kind}: {pattern}\n          shapes {dict(shapes.most_common(4))}; seeds {named}")


class Weir:
    """A weir of its own, with its store in memory."""

    def __init__(self, program, upstream, learns):
        self.folder = tempfile.TemporaryDirectory(prefix="weir-shapes-")
        self.log = open(Path(self.folder.name) / "log", "w+")
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder.name, "LANG": "C.UTF-8"}
        environment |= {"WEIR_UPSTREAM__COMPACTION": "weir"}
        if not learns:
            environment |= {"WEIR_LEARNING__CALIBRATE": "false", "WEIR_LEARNING__OVERFLOW_RETRY": "false"}
        command = [str(program), "serve", "--listen", "127.0.0.1:0", "--upstream", f"{upstream}/v1", "--store", ":memory:", "--color", "never"]
        self.child = subprocess.Popen(command, env=environment, cwd=self.folder.name, stdout=self.log, stderr=self.log)

    async def port(self):
        for _ in range(600):
            found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.text())
            if found:
                return int(found.group(1))
            if self.child.poll() is not None:
                break
            await asyncio.sleep(0.05)
        raise SystemExit(f"weir did not start:\n{self.text()}")

    def text(self):
        return Path(self.log.name).read_text(errors="replace")

    def stop(self):
        self.child.kill()
        self.child.wait(timeout=60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", help=", ".join(PROTOCOLS))
    parser.add_argument("--count", type=int, help="conversations of each protocol [default: as many as the time allows, or 300]")
    parser.add_argument("--seconds", type=float, help="time for each protocol")
    parser.add_argument("--seed", type=int, default=1, help="number of the first conversation")
    parser.add_argument("--only", action="store_true", help="that one alone")
    parser.add_argument("--shape", action="append", help="conversations of these shapes alone")
    parser.add_argument("--without", action="append", default=[], metavar="SHAPE", help="no conversations of this shape")
    parser.add_argument("--requests", type=int, default=6, help="requests of each conversation at most [default: %(default)s]")
    parser.add_argument("--learn", action="store_true", help="let weir learn counts and limits: a conversation then depends on those before it")
    parser.add_argument("--weir", type=Path, default=BINARIES / "weir", help="the program [default: %(default)s]")
    parser.add_argument("--keep", type=Path, help="folder for what was received and sent")
    sys.exit(asyncio.run(run(parser.parse_args())))


async def run(asked):
    if not asked.count and not asked.seconds:
        asked.count = 300
    bad = passed = 0
    for name in asked.protocols or PROTOCOLS:
        upstream = Upstream()
        weir = Weir(asked.weir, await upstream.start(), asked.learn)
        totals = Totals()
        began = time.monotonic()
        try:
            await play_all(name, await weir.port(), upstream, asked, totals)
        finally:
            weir.stop()
        totals.show(name)
        print(f"  {time.monotonic() - began:.0f} s")
        bad += totals.all["failed"]
        passed += totals.all["conversations"] - totals.all["failed"]
    print(f"\n{passed} passed, {bad} failed")
    return int(bad > 0)


if __name__ == "__main__":
    main()
