"""A conversation past the window, plain and streamed, by every client of the SDK."""

import asyncio
import base64
import json

import openai
import pytest

import harness
import talk


def ask_plain(client, messages, model, headers, course):
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=messages, tools=talk.TOOLS, extra_headers=headers
    )
    completion = raw.parse()
    course.note(raw.headers, completion.usage.prompt_tokens)
    return completion.choices[0].message


def ask_streamed(client, messages, model, headers, course):
    """Reads chunks as they arrive and assembles the message by hand."""
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=messages,
        tools=talk.TOOLS,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=headers,
    )
    content, calls, usage, finish = "", {}, None, None
    for chunk in raw.parse():
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            content += choice.delta.content or ""
            for piece in choice.delta.tool_calls or []:
                call = calls.setdefault(piece.index, {"type": "function", "function": {}})
                call["id"] = piece.id or call["id"]
                function = call["function"]
                function["name"] = piece.function.name or function["name"]
                function["arguments"] = function.get("arguments", "") + piece.function.arguments
    assert finish == ("tool_calls" if calls else "stop")
    course.note(raw.headers, usage.prompt_tokens)
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return openai.types.chat.ChatCompletionMessage.model_validate(message)


def ask_helper(client, messages, model, headers, course):
    """Uses the SDK's own assembly of a stream."""
    with client.chat.completions.stream(
        model=model,
        messages=messages,
        tools=talk.TOOLS,
        stream_options={"include_usage": True},
        extra_headers=headers,
    ) as stream:
        completion = stream.get_final_completion()
        headers = stream._response.headers
    course.note(headers, completion.usage.prompt_tokens)
    # The `parsed` member belongs to the helper; the API does not accept it in a request.
    message = completion.choices[0].message.to_dict()
    message.pop("parsed", None)
    return openai.types.chat.ChatCompletionMessage.model_validate(message)


def hold(client, ask, model):
    """Sends questions, calls tools and answers repeatedly; the client never removes a message."""
    course = talk.Course()
    messages = talk.opening()
    for exchange in range(talk.EXCHANGES):
        messages.append(talk.question(exchange))
        message = ask(client, messages, model, talk.calls_script(exchange), course)
        talk.assert_calls(message.tool_calls, exchange)
        messages.append(message)
        messages += [talk.result(call) for call in message.tool_calls]
        text = f"It is {exchange} cm high."
        message = ask(client, messages, model, talk.script(text=text), course)
        assert message.content == text
        assert not message.tool_calls
        messages.append(message)
    return course


ASKS = pytest.mark.parametrize("ask", [ask_plain, ask_streamed, ask_helper])


@ASKS
def test_past_the_window(client, upstream, ask):
    hold(client, ask, "gpt-4o").check(upstream)


@ASKS
def test_past_the_window_in_azures_shape(weir, upstream, ask):
    with openai.AzureOpenAI(
        azure_endpoint=f"http://{weir.address}",
        api_version="2024-10-21",
        api_key=harness.KEY,
        max_retries=0,
    ) as client:
        hold(client, ask, "gpt-4o").check(upstream)
    for request in upstream.requests():
        # The upstream's base URL ends in /v1, so the path is unchanged.
        assert request["path"] == "/v1/chat/completions"
        assert ["api-key", harness.KEY] in request["headers"]


def test_a_window_of_ones_own(client, upstream):
    """The window that the configuration gives a model bounds prompt and answer together."""
    messages = talk.opening()
    actions = []
    for exchange in range(30):
        messages.append(talk.question(exchange) | {"content": f"{exchange} and so on. " * 30})
        raw = client.chat.completions.with_raw_response.create(
            model="small-window",
            messages=messages,
            max_tokens=400,
            extra_headers={"x-upstream-context-tokens": "3000"},
        )
        messages.append(raw.parse().choices[0].message)
        actions.append(raw.headers["x-weir-action"])
    assert "evict" in actions[-1]
    assert all(seen["status"] == 200 for seen in upstream.requests())


def test_a_limit_of_the_request(client, upstream):
    headers = {"x-weir-max-input-tokens": "300"}
    messages = talk.opening() + [talk.question(exchange) for exchange in range(60)]
    raw = client.chat.completions.with_raw_response.create(
        model="gpt-4o", messages=messages, extra_headers=headers
    )
    assert raw.headers["x-weir-action"] == "evict"
    assert raw.parse().usage.prompt_tokens <= 300
    [seen] = upstream.requests()
    assert not any(name.startswith("x-weir-") for name, _ in seen["headers"])


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
@pytest.mark.parametrize(
    "answer", [{"text": "It is 40 cm high."}, {"tool_calls": [{"name": "read", "arguments": {"n": 1}}]}]
)
def test_a_stream_that_does_not_ask_for_its_usage(client, direct, upstream, options, answer):
    """weir requests usage, and the caller's chunks are the same as without it."""

    def chunks(client):
        raw = client.chat.completions.with_raw_response.create(
            model="gpt-4o",
            messages=[{"role": "user", "content": "How high is the water?"}],
            stream=True,
            extra_headers=talk.script(**answer),
            **options,
        )
        dumps = [chunk.to_dict() for chunk in raw.parse()]
        for dump in dumps:
            # The upstream derives ids from the request's bytes, which are not the same.
            dump.pop("id")
            for call in dump["choices"][0]["delta"].get("tool_calls") or []:
                call.pop("id", None)
        return dumps, raw.headers.get("x-weir-edits")

    through, edits = chunks(client)
    assert (through, edits) == (chunks(direct)[0], "usage")
    assert not any("usage" in chunk for chunk in through)
    bodies = [json.loads(base64.b64decode(seen["body_base64"])) for seen in upstream.requests()]
    assert bodies[0] == bodies[1] | {"stream_options": {"include_usage": True}}


def test_many_streams_at_once(weir, upstream):
    """Each begins before any ends."""
    asyncio.run(many_streams(weir, upstream))


STREAMS = 20


async def many_streams(weir, upstream):
    barrier = asyncio.Event()
    begun = 0

    async def one(client, number):
        nonlocal begun
        words = f"stream {number} runs its own way to the end"
        headers = talk.script(text=words) | {"x-upstream-fault": "hold_after:3"}
        stream = await client.chat.completions.create(
            model="gpt-4o",
            messages=[{"role": "user", "content": f"number {number}"}],
            stream=True,
            extra_headers=headers,
        )
        content = ""
        async for chunk in stream:
            if content == "" and chunk.choices[0].delta.content:
                begun += 1
                if begun == STREAMS:
                    await asyncio.to_thread(upstream.release)
                    barrier.set()
                await barrier.wait()
            content += chunk.choices[0].delta.content or ""
        assert content == words

    async with openai.AsyncOpenAI(
        base_url=weir.base_url, api_key=harness.KEY, max_retries=0
    ) as client:
        await asyncio.gather(*(one(client, number) for number in range(STREAMS)))
    assert all(seen["completed"] for seen in upstream.requests())
