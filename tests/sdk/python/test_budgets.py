"""A budget as the SDK's users meet it."""

import subprocess

import openai
import pytest

import harness

HELLO = [{"role": "user", "content": "How high is the water?"}]


@pytest.fixture
def store(tmp_path):
    return tmp_path / "weir.db"


@pytest.fixture
def budgeted(shared_upstream, store):
    """A weir of the test's own, and a client that tries again as it does for everybody."""
    weir = harness.Weir(shared_upstream.base_url, store=store)
    with openai.OpenAI(base_url=weir.base_url, api_key=harness.KEY) as client:
        yield client
    assert weir.stop() == 0, "".join(weir.lines)


def set_budget(store, tokens):
    command = [str(harness.BINARIES / "weir"), "budgets", "set", "all", "--per", "day"]
    told = [*command, "--tokens", str(tokens), "--store", str(store)]
    subprocess.run(told, check=True, env=harness.environment())


def test_what_is_over_is_refused_once_and_not_tried_again(budgeted, upstream, store):
    budgeted.chat.completions.create(model="gpt-4o", messages=HELLO)
    set_budget(store, 1)
    with pytest.raises(openai.RateLimitError) as raised:
        budgeted.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert raised.value.code == "insufficient_quota"
    assert raised.value.type == "insufficient_quota"
    assert "all/tokens/day" in raised.value.message
    assert len(upstream.requests()) == 1
    set_budget(store, 1_000_000)
    budgeted.chat.completions.create(model="gpt-4o", messages=HELLO)


def test_an_answer_ends_where_the_budget_does(budgeted, upstream, store):
    set_budget(store, 60)
    script = {"x-upstream-script": '{"words": 500}'}
    answer = budgeted.chat.completions.create(model="gpt-4o", messages=HELLO, extra_headers=script)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 60
    with pytest.raises(openai.RateLimitError):
        budgeted.chat.completions.create(model="gpt-4o", messages=HELLO)
