"""LlamaIndex: `ChatMemoryBuffer`, `ChatSummaryMemoryBuffer` and `Memory`."""

import proxy
import tokens
from llama_index.core.memory import ChatMemoryBuffer, ChatSummaryMemoryBuffer, Memory
from llama_index.llms.openai.utils import from_openai_message_dict, to_openai_message_dict
from llama_index.llms.openai_like import OpenAILike

SESSIONS = proxy.Sessions()


def split(request):
    """Returns the system messages, which its agents keep apart from a memory, and the others."""
    messages = request["messages"]
    system = [message for message in messages if message["role"] in ("system", "developer")]
    return system, [message for message in messages if message not in system]


def read(messages):
    return [from_openai_message_dict(message) for message in messages]


def write(kept, originals):
    """Returns messages in OpenAI's form; those that the library has not changed as they were received."""
    known = {proxy.canonical(to_openai_message_dict(*read([original]))): original for original in originals}
    written = (to_openai_message_dict(message) for message in kept)
    return [known.get(proxy.canonical(message), message) for message in written]


def buffer(request, room_tokens):
    if tokens.fits(request, room_tokens):
        return None
    system, others = split(request)
    history = read(others)

    def shorten(limit):
        memory = ChatMemoryBuffer.from_defaults(history, token_limit=limit, tokenizer_fn=tokens.encode)
        return {"messages": system + write(memory.get(), others)}

    # Its own count has no calls.
    return tokens.fitting(room_tokens, room_tokens - tokens.of_messages(system), shorten)


def stateful(request, room_tokens, remember):
    """Runs a memory that keeps its state between requests."""
    system, others = split(request)
    state = SESSIONS.resume(others, room_tokens)
    rest = {**request, "messages": state}
    room = room_tokens - tokens.of_messages(system)
    state = write(remember(read(state), rest, room), state)
    SESSIONS.keep(others, room_tokens, state)
    return {"messages": system + state}


def summary(request, room_tokens):
    def remember(history, rest, room_tokens):
        llm = OpenAILike(
            model=request["model"], api_base=proxy.upstream_url(), is_chat_model=True, context_window=128_000
        )
        memory = ChatSummaryMemoryBuffer.from_defaults(
            history, llm, token_limit=1, tokenizer_fn=tokens.encode
        )
        own = memory._token_count_for_messages(history)
        memory.token_limit = tokens.scaled(rest, room_tokens, own)
        return memory.get()

    return stateful(request, room_tokens, remember)


def memory(request, room_tokens):
    def remember(history, rest, room_tokens):
        own = Memory.from_defaults(tokenizer_fn=tokens.encode)._estimate_token_count(history)
        limit = tokens.scaled(rest, room_tokens, own)
        queue = Memory.from_defaults(
            token_limit=limit, token_flush_size=max(1, limit // 10), tokenizer_fn=tokens.encode
        )
        queue.put_messages(history)
        return queue.get()

    return stateful(request, room_tokens, remember)


if __name__ == "__main__":
    proxy.serve({"llama_index_buffer": buffer, "llama_index_summary": summary, "llama_index_memory": memory})
