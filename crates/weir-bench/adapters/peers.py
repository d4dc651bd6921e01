"""The peers: for each the folder that its packages are installed in, the program that starts it, and its arguments."""

PEERS = {
    "identity": ("base", "proxy.py"),
    "cliffcompaction": ("cliffcompaction", "cliffcompaction_peer.py"),
    "headroom": ("headroom", "headroom_peer.py", "cache"),
    "headroom_token": ("headroom", "headroom_peer.py", "token"),
    "litellm_trim": ("litellm", "litellm_peer.py", "litellm_trim"),
    "litellm_compress": ("litellm", "litellm_peer.py", "litellm_compress"),
    "litellm_compress_texts": ("litellm", "litellm_peer.py", "litellm_compress_texts"),
    "langchain_trim": ("langchain", "langchain_peer.py", "langchain_trim"),
    "langchain_clear": ("langchain", "langchain_peer.py", "langchain_clear"),
    "langchain_summary": ("langchain", "langchain_peer.py", "langchain_summary"),
    "openai_agents_trimmer": ("openai-agents", "openai_agents_peer.py", "openai_agents_trimmer"),
    "semantic_kernel_truncation": ("semantic-kernel", "semantic_kernel_peer.py", "semantic_kernel_truncation"),
    "semantic_kernel_summary": ("semantic-kernel", "semantic_kernel_peer.py", "semantic_kernel_summary"),
    "agent_framework": ("agent-framework", "agent_framework_peer.py", "agent_framework"),
    "llama_index_buffer": ("llama-index", "llama_index_peer.py", "llama_index_buffer"),
    "llama_index_summary": ("llama-index", "llama_index_peer.py", "llama_index_summary"),
    "llama_index_memory": ("llama-index", "llama_index_peer.py", "llama_index_memory"),
    "strands_window": ("strands", "strands_peer.py", "strands_window"),
    "ai_sdk_prune": ("base", "ai_sdk_peer.py", "ai_sdk_prune"),
}

# Programs that are proxies themselves. The others share `proxy.py`, which reads the limit from this header.
OWN_PROXIES = ("cliffcompaction_peer.py", "headroom_peer.py")
LIMIT_HEADER = "x-limit-tokens"
# Header in which the bench sends the tokens of the request's tools, as it counts them.
TOOLS_HEADER = "x-fitbench-tools-tokens"
