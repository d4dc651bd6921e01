"""The one proxy that all libraries share: it lets a library change the messages of a chat completion
and forwards the rest as received.

A library's error is answered as status 500 with its text. It is never hidden by sending the original.
"""

import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import sys
import threading
import traceback
import urllib.parse

import tokens
from peers import LIMIT_HEADER, TOOLS_HEADER

NOT_FORWARDED = {
    "host",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "accept-encoding",
    LIMIT_HEADER,
    TOOLS_HEADER,
}
BLANK = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


def skip(text, at):
    return BLANK.match(text, at).end()


def members(text):
    """Returns where each member's value begins and ends in the text of a JSON object."""
    spans = {}
    at = skip(text, 0) + 1
    while text[at := skip(text, at)] != "}":
        key, at = DECODER.raw_decode(text, at)
        start = skip(text, skip(text, at) + 1)
        _, end = DECODER.raw_decode(text, start)
        spans[key] = (start, end)
        at = skip(text, end)
        at += text[at] == ","
    return spans


def items(text, start):
    """Returns the text of each item of the JSON array that begins at `start`."""
    found = []
    at = start + 1
    while text[at := skip(text, at)] != "]":
        _, end = DECODER.raw_decode(text, at)
        found.append(text[at:end])
        at = skip(text, end)
        at += text[at] == ","
    return found


def canonical(value):
    return json.dumps(value, sort_keys=True)


def write(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def splice(text, request, changed):
    """Returns the body with its changed members; messages that are equal to a received one keep its bytes."""
    spans = members(text)
    originals = items(text, spans["messages"][0])
    received = {canonical(message): raw for message, raw in zip(request["messages"], originals)}
    edits = []
    for key, value in changed.items():
        if key == "messages":
            parts = (received.get(canonical(message)) or write(message) for message in value)
            new = "[" + ",".join(parts) + "]"
        else:
            new = write(value)
        if key in spans:
            edits.append((*spans[key], new))
        else:
            end = text.rindex("}")
            edits.append((end, end, f",{write(key)}:{new}"))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


class Sessions:
    """What an application that uses a library keeps between requests: the library's messages after the newest
    request, found again by the longest known beginning of the client's messages. In the current folder."""

    # More than a bench asks for again, so that none is missed for the adapter's sake.
    MOST = 2_000

    def __init__(self, folder="sessions"):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)

    def chain(self, messages, room_tokens):
        digest = hashlib.sha256(str(room_tokens).encode())
        for message in messages:
            digest.update(canonical(message).encode())
            yield digest.hexdigest()

    def resume(self, messages, room_tokens):
        """Returns the library's messages, with those that the client has added since."""
        digests = list(self.chain(messages, room_tokens))
        for length in range(len(messages), 0, -1):
            path = self.folder / f"{digests[length - 1]}.json"
            if path.exists():
                return json.loads(path.read_text()) + messages[length:]
        return list(messages)

    def keep(self, messages, room_tokens, state):
        *_, digest = self.chain(messages, room_tokens)
        (self.folder / f"{digest}.json").write_text(write(state))
        paths = list(self.folder.iterdir())
        if len(paths) > self.MOST:
            paths.sort(key=lambda path: path.stat().st_mtime_ns)
            for path in paths[: len(paths) // 2]:
                path.unlink()


def upstream_url():
    """Returns the upstream's base URL, with its `/v1`."""
    return os.environ["UPSTREAM_URL"].rstrip("/")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    compact = None
    lock = threading.Lock()

    def do_GET(self):
        self.forward(None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.compact is not None and self.path.split("?")[0].endswith("/chat/completions"):
            try:
                body = self.compacted(body)
            except Exception as error:
                traceback.print_exc()
                return self.fail(error)
        self.forward(body)

    def compacted(self, body):
        text = body.decode()
        request = json.loads(text)
        limit_tokens = int(self.headers.get(LIMIT_HEADER) or os.environ["LIMIT_TOKENS"])
        # The bench's own count of the tools, so that a peer has as much room as any other proxy.
        tools_tokens = self.headers.get(TOOLS_HEADER) or tokens.of_tools(request.get("tools"))
        room_tokens = max(1, limit_tokens - int(tools_tokens))
        with self.lock:
            changed = type(self).compact(json.loads(text), room_tokens) or {}
        changed = {key: value for key, value in changed.items() if request.get(key) != value}
        return splice(text, request, changed).encode() if changed else body

    def fail(self, error):
        text = f"{type(error).__name__}: {error}"
        self.answer(500, "application/json", write({"error": {"message": text, "type": "peer"}}).encode())

    def forward(self, body):
        url = urllib.parse.urlsplit(upstream_url())
        headers = {key: value for key, value in self.headers.items() if key.lower() not in NOT_FORWARDED}
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
        try:
            connection.request(self.command, url.path + self.path.removeprefix("/v1"), body, headers)
            response = connection.getresponse()
            answer = response.read()
        except OSError as error:
            return self.fail(error)
        finally:
            connection.close()
        self.answer(response.status, response.headers.get("content-type") or "application/json", answer)

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(peers):
    """Serves the peer that the command line names, on `PORT`.

    `peers` has a function by name. It is called with the request and the tokens that its messages may have, which is
    the limit without the tools. It returns the changed members of the request, or nothing.
    """
    Handler.compact = staticmethod(peers[sys.argv[1]]) if peers else None
    http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()


if __name__ == "__main__":
    serve(None)
