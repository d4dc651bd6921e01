"""Usage and costs of the organization, read by the SDK from weir's admin listener."""

import socket
import time

import harness
import openai

TOKEN = "weir-admin-of-this-test-0123456789abcdef"
HELLO = [{"role": "user", "content": "How high is the water?"}]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_the_sdk_reads_usage_and_costs(upstream, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    port = free_port()
    weir = harness.Weir(
        upstream.base_url,
        store=tmp_path / "weir.db",
        WEIR_ADMIN__LISTEN=f"127.0.0.1:{port}",
        WEIR_ADMIN__TOKEN_FILE=str(tmp_path / "token"),
    )
    try:
        client = openai.OpenAI(api_key=harness.KEY, base_url=weir.base_url, max_retries=0)
        asked = [
            client.chat.completions.create(model=model, messages=HELLO)
            for model in ("gpt-4o", "gpt-4o", "gpt-4o-mini")
        ]
        admin = openai.OpenAI(
            admin_api_key=TOKEN, base_url=f"http://127.0.0.1:{port}/v1", max_retries=0
        )
        start = int(time.time()) - 60
        usage = admin.admin.organization.usage
        for width in ("1d", "1h", "1m"):
            page = usage.completions(
                start_time=start, bucket_width=width, group_by=["model", "project_id"]
            )
            results = [result for bucket in page.data for result in bucket.results]
            models = {}
            for result in results:
                assert result.object == "organization.usage.completions.result"
                assert result.project_id is None
                models[result.model] = models.get(result.model, 0) + result.num_model_requests
            assert models == {"gpt-4o": 2, "gpt-4o-mini": 1}
            assert sum(result.input_tokens for result in results) == sum(
                answer.usage.prompt_tokens for answer in asked
            )
            assert sum(result.output_tokens for result in results) == sum(
                answer.usage.completion_tokens for answer in asked
            )
            assert not page.has_more and page.next_page is None
        page = usage.costs(start_time=start, group_by=["line_item"])
        results = [result for bucket in page.data for result in bucket.results]
        assert {result.line_item for result in results} == {"gpt-4o", "gpt-4o-mini"}
        assert all(result.amount.currency == "usd" for result in results)
        assert all(result.amount.value > 0 for result in results)
    finally:
        assert weir.stop() == 0
