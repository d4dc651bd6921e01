#!/usr/bin/env python3
"""Runs a real Prometheus against a weir under traffic, and evaluates every alert and every query of the
Grafana dashboard in it.

    cargo build --bin weir --example scripted_upstream
    tests/prometheus/run.py

Needs `prometheus` and `promtool`, as Debian's package `prometheus` has them. The scraped page is the
one that weir shows, the rules and the configuration are those of deploy/prometheus.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sdk" / "python"))
import harness  # noqa: E402

DEPLOY = harness.REPOSITORY / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "weir.json"
# Metrics without a sample in this run: nothing is learned.
RARE = ("weir_learned_",)
TARGET = "127.0.0.1:8400"
DEADLINE_SECONDS = 120
# Grafana fills these in.
VARIABLES = {"$__rate_interval": "30s", "$__range": "5m", "$instance": ".*"}

passed, failed = 0, []


def check(name, is_good, problem=""):
    global passed
    if is_good:
        passed += 1
    else:
        failed.append(f"{name}: {problem}")


def tool(name, *command):
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=harness.environment()
    )
    check(name, done.returncode == 0, done.stdout.strip())


def chat(weir, exchanges, **headers):
    """Sends a chat, and returns its status."""
    text = "what there is to say of it, and a little more. " * 20
    messages = [{"role": "system", "content": "You help."}]
    for number in range(exchanges):
        messages.append({"role": "user", "content": f"question {number}: {text}"})
        messages.append({"role": "assistant", "content": f"answer {number}: {text}"})
    messages.append({"role": "user", "content": "And now?"})
    body = json.dumps({"model": "gpt-4o", "messages": messages, "stream": exchanges % 2 == 1}).encode()
    given = {"content-type": "application/json", "authorization": f"Bearer {harness.KEY}"} | headers
    request = urllib.request.Request(f"http://{weir}/v1/chat/completions", body, given)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def ask(prometheus, path, **query):
    """Asks Prometheus' API; a refused query returns its error."""
    url = f"http://{prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def eventually(look, what):
    """Polls until `look` returns something, within a deadline that only a hung run reaches."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        try:
            if found := look():
                return found
        except (OSError, ValueError):
            # It starts, and has no API yet.
            pass
        time.sleep(0.05)
    sys.exit(f"not within {DEADLINE_SECONDS} s: {what}")


def filled(query):
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def queries():
    """Returns the queries of all panels with their titles."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            yield panel["title"], filled(target["expr"])


def evaluate(prometheus):
    for title, query in queries():
        answer = ask(prometheus, "query", query=query)
        good = answer["status"] == "success"
        check(f"{title}: {query}", good, answer.get("error"))
        if not good or any(name in query for name in RARE) or "> 0" in query:
            continue
        check(f"{title} has data: {query}", answer["data"]["result"], "no series")
    groups = ask(prometheus, "rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    check("the alerts are loaded", len(rules) >= 10, rules)
    for rule in rules:
        check(f"alert {rule['name']}", rule["health"] == "ok", rule.get("lastError"))
    firing = {rule["name"] for rule in rules if rule["state"] != "inactive"}
    check("WeirErrors is noticed", "WeirErrors" in firing, f"only {sorted(firing)}")
    check("weir is up", "WeirDown" not in firing, f"{sorted(firing)}")


def traffic(weir):
    for number in range(8):
        check("a short chat", chat(weir, number % 3) == 200, "another status")
    for exchanges in (20, 21, 22):
        check("a compacted chat", chat(weir, exchanges, **{"x-weir-max-input-tokens": "3000"}) == 200, "another status")
    check("a refused chat", chat(weir, 1, **{"x-weir-max-input-tokens": "1"}) == 400, "another status")
    check("a failing chat", chat(weir, 1, **{"x-upstream-fault": "status:500"}) == 500, "another status")


def run(folder):
    upstream = harness.Upstream()
    weir = None
    prometheus = None
    try:
        weir = harness.Weir(upstream.base_url, store=f"{folder}/weir.db", WEIR_UPSTREAM__RETRIES__MAX="0")
        store = ["--store", f"{folder}/weir.db"]
        for limit in (["--usd", "5"], ["--tokens", "100000000"]):
            tool("a budget is set", str(harness.BINARIES / "weir"), "budgets", "set", "all", *limit, "--per", "day", *store)
        text = CONFIGURATION.read_text()
        check("the example scrapes weir's default address", TARGET in text, text)
        text = text.replace(TARGET, weir.address).replace("15s", "1s")
        Path(folder, "prometheus.yml").write_text(text)
        shutil.copy(RULES, folder)
        taken, address = harness.refusing_address()
        taken.close()
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={address}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        count = "count_over_time(weir_requests_total[5m])"
        eventually(lambda: ask(address, "query", query='up{job="weir"} == 1')["data"]["result"], "a scrape")
        traffic(weir.address)
        # Rates need two samples with the traffic, and the alerts an evaluation of them.
        enough = lambda: any(int(float(row["value"][1])) >= 4 for row in ask(address, "query", query=count)["data"]["result"])
        eventually(enough, "four scrapes")
        traffic(weir.address)
        noticed = 'ALERTS{alertname="WeirErrors"}'
        eventually(lambda: ask(address, "query", query=noticed)["data"]["result"], "an alert about errors")
        evaluate(address)
    finally:
        if prometheus:
            prometheus.terminate()
            prometheus.wait(timeout=harness.STOP_SECONDS)
        for process in (weir, upstream):
            if process:
                process.stop()


def main():
    tool("the rules are sound", "promtool", "check", "rules", str(RULES))
    tool("the configuration is sound", "promtool", "check", "config", str(CONFIGURATION))
    with tempfile.TemporaryDirectory() as folder:
        run(folder)
    for line in failed:
        print(f"FAILED {line}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
