// Official SDK, unmodified, through weir: a conversation larger than the window, the routes that
// are forwarded unchanged, and each error as the SDK's own class.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import { after, before, beforeEach, describe, test } from "node:test";

import { CONFIG, KEY, Upstream, Weir } from "./harness.mjs";
import * as talk from "./talk.mjs";

// Loaded last: the harness clears the environment that the SDK reads.
const { default: OpenAI, AzureOpenAI, toFile } = await import("openai");

const HELLO = [{ role: "user", content: "Hello" }];

let upstream;
let weir;
let client;
let direct;

before(async () => {
  upstream = await Upstream.launch("--require-key", KEY);
  weir = await Weir.launch(upstream.baseURL, CONFIG);
  client = connect(weir.baseURL);
  direct = connect(upstream.baseURL);
});

beforeEach(() => upstream.clear());

after(async () => {
  assert.equal(await weir.stop(), 0, weir.lines.join("\n"));
  await upstream.stop();
});

function connect(baseURL, more = {}) {
  return new OpenAI({ baseURL, apiKey: KEY, maxRetries: 0, ...more });
}

function azure() {
  return new AzureOpenAI({
    endpoint: `http://${weir.address}`,
    apiVersion: "2024-10-21",
    apiKey: KEY,
    maxRetries: 0,
  });
}

function chat(client, more = {}, options = {}) {
  return client.chat.completions.create({ model: "gpt-4o", messages: HELLO, ...more }, options);
}

async function askPlain(client, messages, headers, course) {
  const asked = { model: "gpt-4o", messages, tools: talk.TOOLS };
  const answer = client.chat.completions.create(asked, { headers });
  const { data, response } = await answer.withResponse();
  course.note(response.headers, data.usage.prompt_tokens);
  return data.choices[0].message;
}

// Reads chunks as they arrive and assembles the message by hand.
async function askStreamed(client, messages, headers, course) {
  const options = { stream: true, stream_options: { include_usage: true } };
  const asked = { model: "gpt-4o", messages, tools: talk.TOOLS, ...options };
  const answer = client.chat.completions.create(asked, { headers });
  const { data, response } = await answer.withResponse();
  const calls = [];
  let content = "";
  let finish = null;
  let usage = null;
  for await (const chunk of data) {
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      finish = choice.finish_reason ?? finish;
      content += choice.delta.content ?? "";
      for (const piece of choice.delta.tool_calls ?? []) {
        calls[piece.index] ??= { type: "function", function: { arguments: "" } };
        const call = calls[piece.index];
        call.id = piece.id ?? call.id;
        call.function.name = piece.function.name ?? call.function.name;
        call.function.arguments += piece.function.arguments ?? "";
      }
    }
  }
  assert.equal(finish, calls.length ? "tool_calls" : "stop");
  course.note(response.headers, usage.prompt_tokens);
  const message = { role: "assistant", content };
  return calls.length ? { ...message, tool_calls: calls } : message;
}

// Uses the SDK's own assembly of a stream.
async function askHelper(client, messages, headers) {
  const asked = { model: "gpt-4o", messages, tools: talk.TOOLS };
  const stream = client.chat.completions.stream(
    { ...asked, stream_options: { include_usage: true } },
    { headers },
  );
  const completion = await stream.finalChatCompletion();
  assert.ok(completion.usage.prompt_tokens <= talk.LIMIT_TOKENS);
  const { role, content, tool_calls } = completion.choices[0].message;
  const calls = tool_calls?.map(({ id, type, function: { name, arguments: given } }) => {
    return { id, type, function: { name, arguments: given } };
  });
  return calls ? { role, content, tool_calls: calls } : { role, content };
}

// Sends questions, calls tools and answers repeatedly; the client never removes a message.
async function hold(client, ask) {
  const course = new talk.Course();
  const messages = talk.opening();
  for (let exchange = 0; exchange < talk.EXCHANGES; exchange++) {
    messages.push(talk.question(exchange));
    const asking = await ask(client, messages, talk.callsScript(exchange), course);
    talk.assertCalls(asking.tool_calls, exchange);
    messages.push(asking, ...asking.tool_calls.map(talk.result));
    const text = `It is ${exchange} cm high.`;
    const said = await ask(client, messages, talk.script({ text }), course);
    assert.equal(said.content, text);
    messages.push(said);
  }
  return course;
}

describe("a conversation past the window", () => {
  for (const ask of [askPlain, askStreamed]) {
    test(ask.name, async () => (await hold(client, ask)).check(upstream));
    test(`${ask.name} in Azure's shape`, async () => {
      await (await hold(azure(), ask)).check(upstream);
      for (const request of await upstream.requests()) {
        // The upstream's base URL ends in /v1, so the path is unchanged.
        assert.equal(request.path, "/v1/chat/completions");
      }
    });
  }

  test("by the stream helper, which shows no headers", async () => {
    await hold(client, askHelper);
    const seen = await upstream.requests();
    assert.equal(seen.length, 2 * talk.EXCHANGES);
    for (const request of seen) {
      assert.equal(request.status, 200);
      assert.ok(request.prompt_tokens <= talk.LIMIT_TOKENS);
    }
  });

  test("twenty streams at once, each begun before any is ended", async () => {
    const count = 20;
    let begun = 0;
    let open;
    const all = new Promise((resolve) => (open = resolve));
    const one = async (number) => {
      const text = `stream ${number} runs its own way to the end`;
      const headers = { ...talk.script({ text }), "x-upstream-fault": "hold_after:3" };
      const stream = await chat(client, { stream: true }, { headers });
      let content = "";
      for await (const chunk of stream) {
        if (content === "" && chunk.choices[0].delta.content) {
          begun += 1;
          if (begun === count) open(await upstream.release());
          await all;
        }
        content += chunk.choices[0].delta.content ?? "";
      }
      assert.equal(content, text);
    };
    await Promise.all(Array.from({ length: count }, (_, number) => one(number)));
    assert.ok((await upstream.requests()).every((seen) => seen.completed));
  });
});

describe("the routes passed through", () => {
  test("models are listed and found", async () => {
    const ids = async (client) => (await client.models.list()).data.map((model) => model.id);
    assert.deepEqual(await ids(client), await ids(direct));
    assert.equal((await client.models.retrieve("gpt-4o")).id, "gpt-4o");
  });

  test("embeddings come as numbers", async () => {
    const asked = { model: "text-embedding-3-small", input: ["low", "wall"], dimensions: 16 };
    const through = await client.embeddings.create(asked);
    assert.deepEqual(through, await direct.embeddings.create(asked));
    assert.equal(through.data[1].embedding.length, 16);
  });

  test("a file goes up and comes down", async () => {
    const content = Buffer.alloc(1_280_000, Buffer.from(Array.from({ length: 256 }, (_, i) => i)));
    const file = await client.files.create({
      file: await toFile(content, "levels.bin"),
      purpose: "batch",
    });
    assert.deepEqual([file.filename, file.bytes], ["levels.bin", content.length]);
    const answer = await client.files.content(file.id);
    assert.deepEqual(Buffer.from(await answer.arrayBuffer()), content);
    assert.ok((await client.files.delete(file.id)).deleted);
  });

  test("responses, plain and streamed", async () => {
    const asked = { model: "gpt-4o", input: "How high is the water?" };
    assert.equal((await client.responses.create(asked)).output_text, "ok response");
    const final = await client.responses.stream(asked).finalResponse();
    assert.equal(final.output_text, "ok response");
  });
});

async function failure(expected, answer) {
  const error = await answer.then(
    () => assert.fail("no error"),
    (error) => error,
  );
  assert.equal(error.constructor, expected, String(error));
  return error;
}

const fault = (name) => ({ headers: { "x-upstream-fault": name } });

const UPSTREAMS = [
  ["an orphaned result", OpenAI.BadRequestError, {
    messages: [...HELLO, { role: "tool", tool_call_id: "call_1", content: "lost" }],
  }, {}],
  ["overflow", OpenAI.BadRequestError, {}, fault("overflow:openai")],
  ["401", OpenAI.AuthenticationError, {}, fault("status:401")],
  ["403", OpenAI.PermissionDeniedError, {}, fault("status:403")],
  ["an unknown model", OpenAI.NotFoundError, { model: "missing-model" }, {}],
  ["409", OpenAI.ConflictError, {}, fault("status:409")],
  ["413", OpenAI.APIError, {}, fault("status:413")],
  ["422", OpenAI.UnprocessableEntityError, {}, fault("status:422")],
  ["429", OpenAI.RateLimitError, {}, fault("status:429:retry-after=7")],
  ["500", OpenAI.InternalServerError, {}, fault("status:500")],
  ["503", OpenAI.InternalServerError, {}, fault("status:503:retry-after=7")],
];

describe("usage", () => {
  async function told() {
    const url = `http://${weir.address}/weir/v1/usage`;
    const answer = await fetch(url, { headers: { authorization: `Bearer ${KEY}` } });
    assert.equal(answer.status, 200);
    return (await answer.json()).total;
  }

  test("what is written down is what the upstream counted", async () => {
    const before = await told();
    const plain = await chat(client);
    for await (const chunk of await chat(client, { stream: true })) assert.ok(!chunk.usage);
    let last;
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await chat(client, options)) last = chunk;
    assert.deepEqual(last.usage, plain.usage);
    const after = await told();
    const used = (name) => after[name] - before[name];
    const seen = await upstream.requests();
    const counted = (name) => seen.reduce((sum, entry) => sum + entry[name], 0);
    assert.equal(used("requests"), 3);
    assert.equal(used("estimated"), 0);
    for (const name of ["prompt_tokens", "completion_tokens", "cached_tokens"]) {
      assert.equal(used(name), counted(name), name);
    }
  });
});

describe("the upstream's errors are its own", () => {
  for (const [name, expected, more, options] of UPSTREAMS) {
    for (const stream of [false, true]) {
      test(`${name}, ${stream ? "streamed" : "plain"}`, async () => {
        // Usage is requested, so that the bytes are the same either way: the upstream's ids derive
        // from them.
        const asked = stream ? { stream, stream_options: { include_usage: true } } : {};
        const through = await failure(expected, chat(client, { ...more, ...asked }, options));
        const without = await failure(expected, chat(direct, { ...more, ...asked }, options));
        for (const key of ["message", "status", "code", "param", "type", "error", "requestID"]) {
          assert.deepEqual(through[key], without[key], key);
        }
        for (const key of ["retry-after", "x-ratelimit-limit-requests", "content-type"]) {
          assert.equal(through.headers.get(key), without.headers.get(key), key);
        }
        assert.equal(through.headers.get("x-weir-error"), null);
      });
    }
  }
});

describe("errors on the way", () => {
  test("a wrong key", async () => {
    const wrong = connect(weir.baseURL, { apiKey: "sk-wrong" });
    const error = await failure(OpenAI.AuthenticationError, chat(wrong));
    assert.equal(error.code, "invalid_api_key");
  });

  for (const stream of [false, true]) {
    test(`what cannot fit, ${stream ? "streamed" : "plain"}`, async () => {
      const messages = [{ role: "user", content: "The water rises. ".repeat(1000) }];
      const error = await failure(OpenAI.BadRequestError, chat(client, { messages, stream }));
      assert.equal(error.code, "context_length_exceeded");
      assert.match(error.message, /\b2000\b/);
      assert.deepEqual(await upstream.requests(), []);
    });
  }

  test("an origin that is not allowed", async () => {
    const headers = { origin: "https://page.example" };
    const error = await failure(OpenAI.PermissionDeniedError, chat(client, {}, { headers }));
    assert.equal(error.code, "origin_not_allowed");
  });

  test("an unknown path", async () => {
    const lost = connect(`http://${weir.address}/nowhere`);
    assert.equal((await failure(OpenAI.NotFoundError, chat(lost))).code, "not_found");
  });

  test("a body past the limit", async () => {
    const messages = [{ role: "user", content: "a".repeat(2_000_000) }];
    const error = await failure(OpenAI.APIError, chat(client, { messages }));
    assert.deepEqual([error.status, error.code], [413, "body_too_large"]);
  });

  test("a 429 is tried again", async () => {
    await upstream.queueFaults("status:429:retry-after=1");
    await chat(connect(weir.baseURL, { maxRetries: 1 }));
    const statuses = (await upstream.requests()).map((seen) => seen.status);
    assert.deepEqual(statuses, [429, 200]);
  });

  test("nobody listens", async () => {
    const address = await freedAddress();
    await failure(OpenAI.APIConnectionError, chat(connect(`http://${address}/v1`)));
  });

  test("the upstream does not listen", async () => {
    const weir = await Weir.launch(`http://${await freedAddress()}/v1`);
    const error = await failure(OpenAI.InternalServerError, chat(connect(weir.baseURL)));
    assert.deepEqual([error.status, error.code], [502, "upstream_connect"]);
    assert.equal(await weir.stop(), 0);
  });

  test("a caller that does not wait", async () => {
    const hasty = connect(weir.baseURL, { timeout: 500 });
    await failure(OpenAI.APIConnectionTimeoutError, chat(hasty, {}, fault("stall_head")));
    await upstream.waitEnded(1);
    const [seen] = await upstream.requests();
    assert.ok(seen.client_left, "weir leaves the upstream when the caller leaves weir");
  });

  test("a caller that breaks a stream off", async () => {
    const stream = await chat(client, { stream: true }, fault("stall_after:3"));
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content) break;
    }
    await upstream.waitEnded(1);
    const [seen] = await upstream.requests();
    assert.ok(seen.client_left);
  });

  for (const name of ["reset", "close"]) {
    test(`an upstream that hangs up: ${name}`, async () => {
      const error = await failure(OpenAI.InternalServerError, chat(client, {}, fault(name)));
      assert.deepEqual([error.status, error.code], [502, "upstream_closed"]);
    });
  }

  test("a stream cut short raises, after what came before the cut", async () => {
    const headers = {
      ...talk.script({ text: "the river runs over the low wall" }),
      "x-upstream-fault": "truncate_after:4",
    };
    const read = async (client) => {
      let content = "";
      const stream = await chat(client, { stream: true }, { headers });
      const error = await (async () => {
        for await (const chunk of stream) content += chunk.choices[0].delta.content ?? "";
      })().catch((error) => error);
      return [error?.constructor, content];
    };
    const through = await read(client);
    assert.deepEqual(through, await read(direct));
    assert.ok(through[0]);
    assert.ok(through[1].startsWith("the river"));
  });
});

// Returns an address whose listener has just closed.
async function freedAddress() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return `127.0.0.1:${port}`;
}
