"""weir's recorded usage of the SDK's requests equals the upstream's count."""

import json
import urllib.request

import harness

HELLO = [{"role": "user", "content": "How high is the water?"}]


def told(weir):
    """Returns the usage of the tests' credential so far."""
    url = f"http://{weir.address}/weir/v1/usage"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {harness.KEY}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["total"]


def test_what_is_written_down_is_what_the_upstream_counted(client, weir, upstream):
    before = told(weir)
    names = ("requests", "failed", "estimated")
    plain = client.chat.completions.create(model="gpt-4o", messages=HELLO)
    asked = {"model": "gpt-4o", "messages": HELLO, "stream": True}
    for chunk in client.chat.completions.create(**asked):
        assert chunk.usage is None
    *_, last = client.chat.completions.create(**asked, stream_options={"include_usage": True})
    assert last.usage == plain.usage
    embedded = client.embeddings.create(model="text-embedding-3-small", input="low")
    after = told(weir)
    seen = [entry for entry in upstream.requests() if entry["completion_tokens"] is not None]
    assert len(seen) == 3
    prompt_tokens = sum(entry["prompt_tokens"] for entry in seen) + embedded.usage.prompt_tokens
    used = {name: after[name] - before[name] for name in names}
    assert used == {"requests": 4, "failed": 0, "estimated": 0}
    assert after["prompt_tokens"] - before["prompt_tokens"] == prompt_tokens
    written = after["completion_tokens"] - before["completion_tokens"]
    assert written == sum(entry["completion_tokens"] for entry in seen)
