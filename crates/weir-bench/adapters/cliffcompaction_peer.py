"""CliffCompaction: its own proxy, with its defaults and a threshold that keeps its requests within the limit."""

import os
import sys

# It estimates four characters of JSON a token. Code and JSON have fewer, and a request may exceed the threshold.
SCALE = 0.8

threshold = int(int(os.environ["LIMIT_TOKENS"]) * SCALE)
program = os.path.join(os.path.dirname(sys.executable), "cliff")
upstream = os.environ["UPSTREAM_URL"].rstrip("/").removesuffix("/v1")
arguments = ["serve", "--port", os.environ["PORT"], "--threshold", str(threshold), "--openai-upstream", upstream]
os.execv(program, [program, *arguments])
