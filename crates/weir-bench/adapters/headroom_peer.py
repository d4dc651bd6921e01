"""Headroom: its own proxy, with its defaults, in the mode that the argument names (`cache` is its default).

It has no limit of tokens: it compresses what it can. Its cache of answers, its rate limit and its reports are off. Its
model for prose is not among its packages, so that is off, too.
"""

import os
import sys

program = os.path.join(os.path.dirname(sys.executable), "headroom")
upstream = os.environ["UPSTREAM_URL"].rstrip("/").removesuffix("/v1")
os.environ["HOME"] = os.getcwd()
os.environ["HEADROOM_OFFLINE"] = "1"
os.environ["HEADROOM_SKIP_UPSTREAM_CHECK"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
arguments = ["proxy", "--port", os.environ["PORT"], "--mode", sys.argv[1], "--openai-api-url", upstream]
arguments += ["--no-cache", "--no-rate-limit", "--no-telemetry", "--disable-kompress"]
os.execv(program, [program, *arguments])
