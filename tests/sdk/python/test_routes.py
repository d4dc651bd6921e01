"""The routes that weir passes through, by the SDK's own methods."""

import openai


def test_models_are_listed_and_found(client, direct):
    through = client.models.list()
    assert [model.id for model in through] == [model.id for model in direct.models.list()]
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"


def test_embeddings_come_as_numbers(client, direct, upstream):
    asked = {"model": "text-embedding-3-small", "input": ["low", "wall"], "dimensions": 16}
    through = client.embeddings.create(**asked)
    assert through == direct.embeddings.create(**asked)
    assert len(through.data[1].embedding) == 16
    first, second = upstream.requests()
    assert first["body_base64"] == second["body_base64"]


def test_a_file_goes_up_and_comes_down(client, upstream):
    content = bytes(range(256)) * 5000
    file = client.files.create(file=("levels.bin", content), purpose="batch")
    assert (file.filename, file.bytes) == ("levels.bin", len(content))
    assert client.files.retrieve(file.id) == file
    assert file in client.files.list().data
    assert client.files.content(file.id).read() == content
    assert client.files.delete(file.id).deleted


def test_a_transcription_takes_a_form(client):
    heard = client.audio.transcriptions.create(file=("a.wav", b"RIFF" * 100), model="whisper-1")
    assert heard.text == "heard 400 bytes"


def test_speech_comes_as_bytes(client, direct):
    asked = {"model": "tts-1", "voice": "alloy", "input": "The water rises."}
    with client.audio.speech.with_streaming_response.create(**asked) as answer:
        through = b"".join(answer.iter_bytes())
    assert through == direct.audio.speech.create(**asked).read()


def test_responses_plain_and_streamed(client):
    plain = client.responses.create(model="gpt-4o", input="How high is the water?")
    assert plain.output_text == "ok response"
    with client.responses.stream(model="gpt-4o", input="How high is the water?") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "ok response"
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_parsed_answers(client):
    """The SDK's structured outputs: a schema out, an object back."""

    class Answer(openai.BaseModel):
        ok: bool
        messages: int

    messages = [{"role": "user", "content": "Is it well?"}]
    completion = client.chat.completions.parse(
        model="gpt-4o", messages=messages, response_format=Answer
    )
    assert completion.choices[0].message.parsed == Answer(ok=True, messages=1)
