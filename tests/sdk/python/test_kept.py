"""Kept conversations by the SDK: it sends the new message alone, and the model gets all of them."""

import base64
import json

import harness
import openai


def user(text):
    return {"role": "user", "content": text}


def test_the_sdk_needs_no_history(upstream, tmp_path):
    weir = harness.Weir(
        upstream.base_url, store=tmp_path / "weir.db", WEIR_CONVERSATIONS__ENABLED="true"
    )
    try:
        client = openai.OpenAI(
            api_key=harness.KEY,
            base_url=weir.base_url,
            max_retries=0,
            default_headers={"x-weir-conversation": "trip-1"},
        )
        transcript = []
        for number in range(4):
            transcript.append(user(f"question {number}"))
            asked = {"model": "gpt-4o", "messages": [transcript[-1]]}
            if number % 2:
                pieces = client.chat.completions.create(**asked, stream=True)
                said = "".join(
                    chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices
                )
            else:
                said = client.chat.completions.create(**asked).choices[0].message.content
            sent = json.loads(base64.b64decode(upstream.requests()[-1]["body_base64"]))
            assert sent["messages"] == transcript
            transcript.append({"role": "assistant", "content": said})
    finally:
        assert weir.stop() == 0
