"""Starts the scripted upstream and weir as processes, and reads the upstream's log.

Knows nothing of the SDK. Readiness is detected from the processes' output; nothing sleeps.
"""

import json
import os
import queue
import re
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
BINARIES = Path(os.environ.get("WEIR_TEST_BINARIES", REPOSITORY / "target" / "debug"))
START_SECONDS = 60
STOP_SECONDS = 60
KEY = "sk-right"

# weir refuses unknown settings, and an SDK reads its own from the environment.
FOREIGN = re.compile(r"^(WEIR_|OTEL_|OPENAI_|AZURE_OPENAI_|.*_PROXY$)", re.IGNORECASE)


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return kept | more


class Process:
    """Process that prints its address on one of its outputs."""

    def __init__(self, command, ready, stream, **more):
        if not Path(command[0]).exists():
            raise FileNotFoundError(
                f"{command[0]} is missing: cargo build --bin weir --example scripted_upstream"
            )
        self.lines = []
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stream == "stdout" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if stream == "stderr" else subprocess.DEVNULL,
            text=True,
            env=environment(**more),
        )
        found = queue.Queue()
        reader = threading.Thread(
            target=self._read, args=(getattr(self._child, stream), ready, found), daemon=True
        )
        reader.start()
        self.address = found.get(timeout=START_SECONDS)
        if self.address is None:
            raise RuntimeError(f"{command[0]} ended before it listened:\n" + "".join(self.lines))

    def _read(self, stream, ready, found):
        # Reads to the end, so that the process never blocks on a full pipe.
        for line in stream:
            self.lines.append(line)
            match = re.search(ready, line)
            if match:
                found.put(match.group(1))
        found.put(None)

    def stop(self):
        """Stops it and returns its exit code."""
        self._child.terminate()
        return self._child.wait(timeout=STOP_SECONDS)


class Upstream(Process):
    def __init__(self, *flags):
        program = str(BINARIES / "examples" / "scripted_upstream")
        super().__init__([program, *flags], r"listening on http://([\d.:]+)/v1", "stdout")
        self.base_url = f"http://{self.address}/v1"

    def control(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.address}/scripted/{path}", data=data, method=method
        )
        with urllib.request.urlopen(request, timeout=STOP_SECONDS) as answer:
            return json.load(answer)

    def clear(self):
        self.control("DELETE", "log")

    def requests(self):
        return self.control("GET", "log?bodies=1")["requests"]

    def wait_ended(self, count):
        self.control("GET", f"wait?ended={count}")

    def queue_faults(self, *faults):
        self.control("POST", "faults", list(faults))

    def release(self):
        self.control("POST", "release", {})


class Weir(Process):
    def __init__(self, upstream_url, config=None, store=":memory:", **more):
        command = [str(BINARIES / "weir"), "serve", "--listen", "127.0.0.1:0"]
        command += ["--store", str(store)]
        command += ["--upstream", upstream_url]
        if config is not None:
            command += ["--config", str(config)]
        super().__init__(command, r"listening on ([\d.:]+),", "stderr", **more)
        self.base_url = f"http://{self.address}/v1"


def refusing_address():
    """Socket that reserves a port without a listener while it exists, so that connections are refused."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    host, port = taken.getsockname()
    return taken, f"{host}:{port}"
