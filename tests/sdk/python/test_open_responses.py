"""The Open Responses suite of llm-comply, an independent checker of APIs, against weir, and its schemas
against the answers that weir gives itself."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import llm_comply
import pytest
from llm_comply.config import ComplianceConfig
from llm_comply.result import TestStatus
from llm_comply.runner import TestRunner
from llm_comply.schema import SpecLoader
from llm_comply.tests.open_responses import OPEN_RESPONSES_TESTS

import harness

SPECIFICATION = SpecLoader(str(Path(llm_comply.__file__).parent / "specs" / "openresponses.json"))
# Of a model that reasons; the checker itself skips it for others.
SKIPPED = {"reasoning-summary"}
CASES = [case for case in OPEN_RESPONSES_TESTS if case.id not in SKIPPED]


def post(weir, path, body):
    request = urllib.request.Request(
        weir.base_url + path,
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {harness.KEY}"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def message(role, content):
    return {"type": "message", "role": role, "content": content}


def test_the_suite_has_its_twelve_cases():
    assert len(CASES) == 12


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_weir_complies(weir, case):
    config = ComplianceConfig(base_url=weir.base_url, api_key=harness.KEY, model="gpt-4o")
    result = TestRunner(config, [case], SPECIFICATION).run_one(case)
    assert (result.status, result.errors, result.warnings) == (TestStatus.PASSED, [], [])


# As the specification's own suite asks it, and longer ones.
COMPACTED = {
    "two messages": [
        message("user", "We agreed to launch on Tuesday and notify support first."),
        message("assistant", "Understood. Tuesday, with support notified beforehand."),
    ],
    "a call that waits": [
        message("developer", "Be careful."),
        message("user", [{"type": "input_text", "text": "Look."}]),
        message("assistant", [{"type": "output_text", "text": "I look."}]),
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    ],
    "many turns": [
        message("user", "Check every part."),
        *(
            item
            for turn in range(60)
            for item in (
                {"type": "function_call", "call_id": f"c{turn}", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": f"c{turn}", "output": "level " * 60},
            )
        ),
    ],
}


@pytest.mark.parametrize("name", COMPACTED)
def test_a_compacted_list_has_the_specified_form(weir, name):
    asked = {"model": "gpt-4o-mini", "prompt_cache_key": "k", "input": COMPACTED[name]}
    status, answer = post(weir, "/responses/compact", asked)
    assert status == 200, answer
    assert SPECIFICATION.validate(answer, "CompactResource") == []
    assert [item["type"] for item in answer["output"]].count("compaction") == 1
    # The list begins a conversation of its own.
    more = answer["output"] + [message("user", "Go on.")]
    if name == "a call that waits":
        output = {"type": "function_call_output", "call_id": "c", "output": "Nothing."}
        more = answer["output"] + [output]
    status, answer = post(weir, "/responses", {"model": "gpt-4o-mini", "input": more})
    assert status == 200, answer
    assert SPECIFICATION.validate(answer, "ResponseResource") == []


def test_a_list_without_a_model_is_refused(weir):
    status, answer = post(weir, "/responses/compact", {"input": COMPACTED["two messages"]})
    assert (status, answer["error"]["param"]) == (400, "model")


def test_a_threshold_adds_an_item_to_the_answer(weir):
    managed = [{"type": "compaction", "compact_threshold": 1000}]
    asked = {"model": "gpt-4o-mini", "input": COMPACTED["many turns"], "context_management": managed}
    status, answer = post(weir, "/responses", asked)
    assert status == 200, answer
    assert SPECIFICATION.validate(answer, "ResponseResource") == []
    assert [item["type"] for item in answer["output"]] == ["compaction", "message"]
