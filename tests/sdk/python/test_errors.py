"""An error of each kind arrives as the SDK's own exception, the upstream's errors as they would without weir."""

import logging
import re

import httpx2
import openai
import pytest

import harness

HELLO = [{"role": "user", "content": "Hello"}]
ORPHAN = HELLO + [{"role": "tool", "tool_call_id": "call_1", "content": "lost"}]


def chat(client, **changes):
    return client.chat.completions.create(**({"model": "gpt-4o", "messages": HELLO} | changes))


def failure(expected, client, **changes):
    with pytest.raises(openai.APIError) as raised:
        chat(client, **changes)
    error = raised.value
    assert type(error) is expected, error
    return error


def fault(name):
    return {"extra_headers": {"x-upstream-fault": name}}


UPSTREAMS = [
    (openai.BadRequestError, {"messages": ORPHAN}),
    (openai.BadRequestError, {"temperature": 9}),
    (openai.BadRequestError, fault("overflow:openai")),
    (openai.BadRequestError, fault("overflow:llamacpp")),
    (openai.AuthenticationError, fault("status:401")),
    (openai.PermissionDeniedError, fault("status:403")),
    (openai.NotFoundError, {"model": "missing-model"}),
    (openai.ConflictError, fault("status:409")),
    (openai.APIStatusError, fault("status:413")),
    (openai.UnprocessableEntityError, fault("status:422")),
    (openai.RateLimitError, fault("status:429:retry-after=7")),
    (openai.InternalServerError, fault("status:500")),
    (openai.InternalServerError, fault("status:503:retry-after=7")),
    (openai.InternalServerError, fault("status:529")),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("expected, changes", UPSTREAMS)
def test_the_upstreams_errors_are_its_own(client, direct, expected, changes, streamed):
    if streamed:
        # Usage is requested, so that the bytes are the same either way: the upstream's ids derive
        # from them.
        changes = changes | {"stream_options": {"include_usage": True}}
    through = failure(expected, client, stream=streamed, **changes)
    without = failure(expected, direct, stream=streamed, **changes)
    for name in ("message", "code", "param", "type", "status_code", "body", "request_id"):
        assert getattr(through, name) == getattr(without, name), name
    for name in ("retry-after", "x-ratelimit-limit-requests", "content-type"):
        headers = through.response.headers, without.response.headers
        assert headers[0].get(name) == headers[1].get(name), name
    assert "x-weir-error" not in through.response.headers


def test_a_wrong_key(weir, upstream):
    with openai.OpenAI(base_url=weir.base_url, api_key="sk-wrong", max_retries=0) as client:
        error = failure(openai.AuthenticationError, client)
    assert error.code == "invalid_api_key"
    [seen] = upstream.requests()
    assert ["authorization", "Bearer sk-wrong"] in seen["headers"]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_what_cannot_fit(client, upstream, streamed):
    messages = [{"role": "user", "content": "The water rises. " * 1000}]
    error = failure(openai.BadRequestError, client, messages=messages, stream=streamed)
    assert error.code == "context_length_exceeded"
    assert error.type == "invalid_request_error"
    assert error.param == "messages"
    assert re.search(r"\b2000\b", error.message), error.message
    assert upstream.requests() == []


WEIRS = [
    (openai.PermissionDeniedError, "origin_not_allowed", {"origin": "https://page.example"}),
    (openai.PermissionDeniedError, "bypass_not_allowed", {"x-weir-bypass": "1"}),
    (openai.BadRequestError, "invalid_request", {"x-weir-max-input-tokens": "few"}),
]


@pytest.mark.parametrize("expected, code, headers", WEIRS)
def test_weirs_own_refusals(client, upstream, expected, code, headers):
    error = failure(expected, client, extra_headers=headers)
    assert error.code == code
    assert error.response.headers["x-weir-error"] == code
    assert upstream.requests() == []


def test_an_unknown_path(weir, upstream):
    base_url = f"http://{weir.address}/nowhere"
    with openai.OpenAI(base_url=base_url, api_key=harness.KEY, max_retries=0) as client:
        assert failure(openai.NotFoundError, client).code == "not_found"
    assert upstream.requests() == []


def test_a_body_past_the_limit(client, upstream):
    messages = [{"role": "user", "content": "a" * 2_000_000}]
    error = failure(openai.APIStatusError, client, messages=messages)
    assert (error.status_code, error.code) == (413, "body_too_large")
    assert upstream.requests() == []


def test_the_wait_that_a_429_asks_for_is_kept(weir, upstream, caplog):
    upstream.queue_faults("status:429:retry-after=1")
    with (
        caplog.at_level(logging.INFO, logger="openai"),
        openai.OpenAI(base_url=weir.base_url, api_key=harness.KEY, max_retries=1) as client,
    ):
        assert chat(client).choices[0].message.content
    assert [seen["status"] for seen in upstream.requests()] == [429, 200]
    assert re.search(r"Retrying request.* in 1\.0+ seconds", caplog.text), caplog.text


def test_nobody_listens():
    taken, address = harness.refusing_address()
    base_url = f"http://{address}/v1"
    with taken, openai.OpenAI(base_url=base_url, api_key="k", max_retries=0) as client:
        failure(openai.APIConnectionError, client)


def test_the_upstream_does_not_listen():
    taken, address = harness.refusing_address()
    with taken:
        weir = harness.Weir(f"http://{address}/v1")
        with openai.OpenAI(base_url=weir.base_url, api_key="k", max_retries=0) as client:
            error = failure(openai.InternalServerError, client)
        assert (error.status_code, error.code) == (502, "upstream_connect")
        assert weir.stop() == 0


def test_a_caller_that_does_not_wait(weir, upstream):
    with openai.OpenAI(
        base_url=weir.base_url, api_key=harness.KEY, max_retries=0, timeout=0.5
    ) as client:
        failure(openai.APITimeoutError, client, **fault("stall_head"))
    upstream.wait_ended(1)
    [seen] = upstream.requests()
    assert seen["client_left"], "weir leaves the upstream when the caller leaves weir"


def test_an_upstream_that_is_silent(upstream):
    weir = harness.Weir(upstream.base_url, WEIR_UPSTREAM__TIMEOUTS_MS__FIRST_BYTE="200")
    with openai.OpenAI(base_url=weir.base_url, api_key=harness.KEY, max_retries=0) as client:
        error = failure(openai.InternalServerError, client, **fault("stall_head"))
    assert (error.status_code, error.code) == (504, "upstream_timeout")
    assert weir.stop() == 0


@pytest.mark.parametrize("name", ["reset", "close"])
def test_an_upstream_that_hangs_up(client, name):
    error = failure(openai.InternalServerError, client, **fault(name))
    assert (error.status_code, error.code) == (502, "upstream_closed")


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_an_answer_cut_short_raises(client, direct, streamed):
    """The text before the connection broke has arrived."""

    def read(client):
        content = ""
        script = {"x-upstream-script": '{"text": "the river runs over the low wall"}'}
        headers = script | {"x-upstream-fault": "truncate_after:4" if streamed else "truncate_after:1"}
        try:
            answer = chat(client, stream=streamed, extra_headers=headers)
            for chunk in answer if streamed else []:
                content += chunk.choices[0].delta.content or ""
        except (openai.APIError, httpx2.HTTPError) as error:
            return type(error), content
        raise AssertionError("no error")

    through = read(client)
    assert through == read(direct)
    assert bool(through[1]) == streamed
