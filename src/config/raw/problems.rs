//! Configurations with one error each, and the expected message.

/// Configuration text and expected error line.
pub(super) const PROBLEMS: &[(&str, &str)] = &[
    (
        "[server]\nlisten = \"localhost\"",
        "server.listen: \"localhost\" is not a listen address; write a port, such as 8400, or an \
         IP address and a port, such as 127.0.0.1:8400 (0.0.0.0:8400 for all of this machine's \
         addresses)",
    ),
    (
        "[server]\nlisten = \"localhost:70000\"",
        "server.listen: 70000 is not a port; ports are from 1 to 65535, such as 8400",
    ),
    ("[server]\nlisten = 8400.5", "server.listen: 8400.5 is not text in quotes, or a whole number"),
    (
        "[server]\nmax_connections = 0",
        "server.max_connections: 0 is not a whole number from 1 to 1000000",
    ),
    (
        "[server]\nmax_connections = -1.5",
        "server.max_connections: -1.5 is not a whole number from 1 to 1000000",
    ),
    (
        "[server]\nallowed_hosts = [\"a\", \"https://b/\"]",
        "server.allowed_hosts: \"https://b/\" is not a host name; write it without scheme, port \
         and path, such as \"weir.example.com\"",
    ),
    (
        "[server]\nmax_bodies_in_flight_bytes = 2000",
        "server.max_bodies_in_flight_bytes: is less than server.max_body_bytes (67108864): no \
         such body could pass",
    ),
    (
        "[server]\nproxy_protocol_from = [\"10.0.0.0/8\", \"lb\"]",
        "server.proxy_protocol_from: \"lb\" is not a network; write an address and its prefix \
         length, such as 10.0.0.0/8",
    ),
    (
        "[server.tls]\ncert_file = \"a.pem\"",
        "server.tls.key_file: is missing: tls.cert_file is set, and has no effect alone",
    ),
    (
        "[admin.tls]\nclient_ca_file = \"a.pem\"",
        "admin.tls.client_ca_file: is set without tls.cert_file: callers can present certificates only \
         if weir presents one",
    ),
    (
        "[upstream]\ntls.key_file = \"a.pem\"",
        "upstream.tls.cert_file: is missing: tls.key_file is set, and has no effect alone",
    ),
    (
        "[server.tls]\ncert_fil = \"a.pem\"",
        "server.tls.cert_fil: there is no such key; did you mean server.tls.cert_file?",
    ),
    (
        "[redis]\nurl = \"http://:secret@host\"",
        "redis.url: is not a Redis address; write redis://HOST:PORT, or rediss:// for TLS, such as \
         redis://127.0.0.1:6379",
    ),
    (
        "[redis]\nurl = \"redis://h?prefix={a}\"",
        "redis.url: \"{a}\" is not a valid key prefix; write at most 64 letters, digits and \
         -_.:",
    ),
    (
        "[events]\nkinds = [\"restart\"]",
        "events.kinds: \"restart\" is not a kind of event; the kinds are budget_warning, \
         budget_exhausted, breaker_opened, breaker_closed, limit_learned, store_failing, \
         store_recovered, reload_refused",
    ),
    (
        "[events]\nwebhook_url = \"chat.example/secret\"",
        "events.webhook_url: is not a URL to post to; write it as https://HOST/PATH",
    ),
    (
        "[events]\nsecret = \"file:\"",
        "events.secret: is not \"env:NAME\", such as \"env:OPENAI_API_KEY\", or \"file:PATH\"; do not \
         write the key itself into the configuration",
    ),
    (
        "[traces]\nsample_ratio = 2",
        "traces.sample_ratio: 2 is not a share from 0 to 1 with at most three decimals, like 0.625",
    ),
    (
        "[cors]\nallow_origins = [\"*\"]",
        "cors.allow_origins: \"*\" is not an origin; write scheme and host, with the port if it \
         has one, such as \"https://chat.example.com\"",
    ),
    (
        "[auth]\nmode = \"keys\"",
        "upstream.api_key: is missing: with auth.mode = \"keys\" callers have weir's virtual \
         keys, and weir needs the provider's. Name the variable that holds it, such as \
         \"env:OPENAI_API_KEY\", or its file. If the upstream needs no key, \
         any text will do",
    ),
    (
        "[upstream]\napi_key = \"env:sk-of-the-provider\"",
        "upstream.api_key: is not the name of an environment variable, such as \
         \"OPENAI_API_KEY\"; do not write the key itself into the configuration",
    ),
    (
        "[upstream]\napi_key = \"sk-of-the-provider\"",
        "upstream.api_key: is not \"env:NAME\", such as \"env:OPENAI_API_KEY\", or \"file:PATH\"; do not \
         write the key itself into the configuration",
    ),
    (
        "[server]\nlisten = \"0.0.0.0:1\"\n[upstream]\napi_key = \"env:A\"",
        "auth.allow_anonymous: is false, but weir listens on 0.0.0.0:1 and has a key of its own \
         (upstream.api_key, headers or url), which anybody who can \
         reach it could use. Give callers keys with auth.mode = \"keys\", listen on loopback, or \
         set this to true if you intend that",
    ),
    (
        "[server]\nlisten = \"0.0.0.0:1\"\n[upstream]\nheaders = { authorization = \"Bearer a\" }",
        "auth.allow_anonymous: is false, but weir listens on 0.0.0.0:1 and has a key of its own \
         (upstream.api_key, headers or url), which anybody who can \
         reach it could use. Give callers keys with auth.mode = \"keys\", listen on loopback, or \
         set this to true if you intend that",
    ),
    (
        "[server]\nlisten = \"0.0.0.0:1\"\n[upstream]\nurl = \"https://h/v1?key=a\"",
        "auth.allow_anonymous: is false, but weir listens on 0.0.0.0:1 and has a key of its own \
         (upstream.api_key, headers or url), which anybody who can \
         reach it could use. Give callers keys with auth.mode = \"keys\", listen on loopback, or \
         set this to true if you intend that",
    ),
    (
        "[server]\nlisten = \"0.0.0.0:1\"\n[upstreams.b]\nurl = \"http://localhost/v1\"\n\
         headers = { api-key = \"env:A\" }",
        "auth.allow_anonymous: is false, but weir listens on 0.0.0.0:1 and has a key of its own \
         (upstreams.b.api_key, headers or url), which anybody who \
         can reach it could use. Give callers keys with auth.mode = \"keys\", listen on loopback, \
         or set this to true if you intend that",
    ),
    (
        "[upstreams.b]\nretries.max = 1",
        "upstreams.b.url: is missing: an upstream needs its base URL",
    ),
    (
        "[upstreams.default]\nurl = \"http://localhost/v1\"",
        "upstreams.default: is the name of [upstream]; write its keys there, or choose another name",
    ),
    (
        "[upstreams.\"a b\"]\nurl = \"http://localhost/v1\"",
        "upstreams.\"a b\": is not an upstream name; write at most 64 letters, digits and -_.",
    ),
    (
        "[upstreams.b]\nurl = \"http://localhost/v1\"\napi_key = \"env:A\"\nforward_caller_key = true",
        "upstreams.b.forward_caller_key: is true together with a key of weir's own (api_key), which replaces callers' keys; choose one",
    ),
    (
        "[auth]\nmode = \"keys\"\n[upstream]\napi_key = \"env:A\"\n[upstreams.b]\n\
         url = \"http://localhost/v1\"\nforward_caller_key = true",
        "upstreams.b.forward_caller_key: is true, but with auth.mode = \"keys\" callers have \
         weir's virtual keys, which go to no upstream",
    ),
    (
        "[upstream]\nheaders = { host = \"a\" }",
        "upstream.headers: \"host\" is a header that weir sets itself",
    ),
    (
        "[upstream]\nheaders = { x-a = 1 }",
        "upstream.headers: a table is not a table of texts, such as { \"http-referer\" = \
         \"https://example.com\" }",
    ),
    (
        "[upstream]\nheaders = { x-a = \"1\", X-A = \"env:B\" }",
        "upstream.headers: give \"x-a\" twice",
    ),
    (
        "[upstream]\nheaders = { api-key = \"env:sk-secret\" }",
        "upstream.headers: is not the name of an environment variable, such as \
         \"OPENAI_API_KEY\"; do not write the key itself into the configuration",
    ),
    (
        "[[routes]]\nupstream = \"default\"",
        "routes[0].models: is missing: a route needs models, such as [\"gpt-4o*\"]",
    ),
    (
        "[[routes]]\nmodels = [\"a\"]\nupstream = \"c\"\n[upstreams.b]\nurl = \"http://localhost/v1\"",
        "routes[0].upstream: \"c\" is not an upstream; the upstreams are default, b",
    ),
    (
        "[[routes]]\nmodels = [\"a\", \"b*\"]\n[[routes]]\nmodels = [\"b*\", \"a\"]",
        "routes[1].models: names \"a\", as routes[0] does already",
    ),
    (
        "[[routes]]\nmodels = [\"a\"]\nsend_as = \"b*\"",
        "routes[0].send_as: \"b*\" is a pattern; write one model's name",
    ),
    (
        "[[routes]]\nmodels = [\"a\"]\nfallback = [\"A\"]",
        "routes[0].fallback: \"A\" is a model of this row itself; name another model",
    ),
    (
        "[[routes]]\nmodels = [\"a*\"]\nsend_as = \"b\"\nlarger = \"ab\"",
        "routes[0].larger: \"ab\" is a model of this row itself; name another model",
    ),
    (
        "[upstreams.b]\nurl = \"http://localhost/v1\"\n[[routes]]\nmodels = [\"a\"]\n\
         upstream = \"b\"\nfallback = [\"c\"]",
        "routes[0].fallback: \"c\" goes to the upstream \"default\", which would receive the \
         caller's own credential. The caller's credential goes only to the default route and to \
         routes with forward_caller_key; fallback never leads to another route that would receive \
         it. Give \"default\" a key of weir's own (api_key)",
    ),
    (
        "[upstreams.b]\nurl = \"http://localhost/v1\"\nforward_caller_key = true\n[[routes]]\n\
         models = [\"a\"]\nlarger = \"c\"\n[[routes]]\nmodels = [\"c\"]\nupstream = \"b\"",
        "routes[0].larger: \"c\" goes to the upstream \"b\", which would receive the caller's own \
         credential. The caller's credential goes only to the default route and to routes with \
         forward_caller_key; fallback never leads to another route that would receive it. Give \
         \"b\" a key of weir's own (api_key)",
    ),
    (
        "[[routes]]\nmodels = [\"a\"]\n[routes.price]\ninput_usd_per_mtok = 1",
        "routes[0].price.output_usd_per_mtok: is missing: a price needs at least \
         input_usd_per_mtok and output_usd_per_mtok; write 0 if it is free",
    ),
    (
        "[admin]\nlisten = \"127.0.0.1:8400\"",
        "admin.listen: is 127.0.0.1:8400, the same as server.listen; choose another port",
    ),
    (
        "[admin]\nlisten = \"nowhere\"",
        "admin.listen: \"nowhere\" is not a listen address; write a port, such as 8410, or an IP \
         address and a port, such as 127.0.0.1:8410 (0.0.0.0:8410 for all of this machine's \
         addresses), or \"off\"",
    ),
    ("[context]\nmode = \"off\"", "context.mode: \"off\" is not one of \"compact\", \"observe\""),
    (
        "[context]\nlow = 1.5",
        "context.low: 1.5 is not a share from 0.001 to 1 with at most three decimals, like 0.625",
    ),
    (
        "[context]\nlow = 0.6001",
        "context.low: 0.6001 is not a share from 0.001 to 1 with at most three decimals, like \
         0.625",
    ),
    (
        "[context]\nhard = 0.6",
        "context.low: is not below context.hard (0.6): a compaction would free nothing",
    ),
    (
        "[context]\nnotes = 1",
        "context.notes: 1 is not one of \"off\", \"count\", \"extract\", \"excerpts\"",
    ),
    (
        "[context]\nanchors = [\"ok\", \"(\"]",
        "context.anchors: is not a list of regular expressions of at most 500 bytes each: regex \
         parse error: ( ^ error: unclosed group",
    ),
    (
        "[context.advanced]\nshares.system = 0.2",
        "context.advanced.shares.conversation: raises the sum of all shares to 1.05, above 1",
    ),
    (
        "[context.advanced]\nnotices.mask = \"a ] b\"",
        "context.advanced.notices.mask: is not one line of at most 500 bytes without brackets",
    ),
    (
        "[context]\nallowed_policies = [\"zones\", \"mine\"]",
        "context.allowed_policies: \"mine\" is not a policy; the policies are \"default\", \
         \"scored\", \"zones\", \"extract\", \"shares\", \"tiers\"",
    ),
    (
        "[policies.default]\nhard = 0.9",
        "policies.default: is the policy of [context] itself: write its keys there",
    ),
    (
        "[policies.a]\npreset = \"zones\"\nlow = 0.8",
        "policies.a.advanced.marks.soft: must be above policies.a.low and at most policies.a.hard",
    ),
    (
        "[policies.a]\nmode = \"observe\"",
        "policies.a.mode: there is no such key; did you mean auth.mode or context.mode or \
         summaries.mode?",
    ),
    (
        "[models.gpt-4o]\npolicy = \"b\"\n[policies.a]\nlow = 0.5",
        "models.gpt-4o.policy: \"b\" is not a policy; the policies are \"default\", \"scored\", \
         \"zones\", \"extract\", \"shares\", \"tiers\", \"a\"",
    ),
    (
        "[context]\nsoft = 0.8",
        "context.soft: there is no such key; did you mean context.advanced.marks.soft?",
    ),
    (
        "[context.advanced]\nmarks.soft = 0.5",
        "context.advanced.marks.soft: must be above context.low and at most context.hard",
    ),
    (
        "[server]\nmax_body_bytes = 1024\nmax_bodies_in_flight_bytes = 4194304\n[conversations]\nenabled = true",
        "conversations.max_bytes.conversation: 4194304 is not less than \
         server.max_bodies_in_flight_bytes (4194304), so each request of a kept conversation would \
         get 503; lower this key, or raise that one to 8388608 or more",
    ),
    (
        "[conversations]\nmax_messages = 1",
        "conversations.max_messages: 1 is not a whole number from 2 to 10000",
    ),
    ("[context]\nprofile = \"a\\u0007\"", "context.profile: has control characters"),
    (
        "[context]\noriginals = \"disk\"",
        "context.originals: \"disk\" is not one of \"off\", \"memory\", \"store\"",
    ),
    (
        "[context.advanced]\noriginals.lifetime_ms = 999",
        "context.advanced.originals.lifetime_ms: 999 is not a whole number from 1000 to 31622400000",
    ),
    (
        "[store]\npath = \"~/weir.db\"",
        "store.path: \"~/weir.db\" begins with ~, which only shells expand; write the full path",
    ),
    (
        "[store]\npath = \"/var/lib/weir/\"",
        "store.path: \"/var/lib/weir/\" is not a file path, such as \"/var/lib/weir/weir.db\"",
    ),
    (
        "[store]\npath = \"postgres://weir:secret@db/weir\"",
        "store.path: is the URL of a database server; write it as store.url",
    ),
    (
        "[store]\nurl = \"mysql://weir:secret@db/weir\"",
        "store.url: is not the URL of a PostgreSQL server, such as \
         \"postgres://user:password@host:5432/weir\"",
    ),
    (
        "[store]\npath = \"weir.db\"\nurl = \"postgres://weir:secret@db/weir\"",
        "store.url: is set together with store.path; keep one of them, a database server or a file",
    ),
    ("[server]\nlisten_ = 1", "server.listen_: there is no such key; did you mean server.listen?"),
    (
        "[server]\nurl = 1",
        "server.url: there is no such key; did you mean redis.url or store.url or summaries.upstream.url or upstream.url?",
    ),
    ("[serve]\nlisten = 1", "serve: there is no such key; did you mean server?"),
    ("server_listen = 1", "server_listen: there is no such key; did you mean server.listen?"),
    (
        "[[routes]]\nmodels = [\"a\"]\nmodel = \"a\"",
        "routes[0].model: there is no such key; did you mean routes[0].models?",
    ),
    (
        "[models.a]\nwindow_tokens = 5\nwindow = 5",
        "models.a.window: there is no such key; did you mean models.a.window_tokens?",
    ),
    (
        "[budgets]\nlimit = 5",
        "budgets.limit: there is no such key; budgets are in the store, and `weir budgets set` sets \
         one",
    ),
    ("[[budgets]]\nusd = 5", "budgets: is a section: write its keys under [budgets]"),
    (
        "[context]\nmax_input_tokens = 5",
        "context.max_input_tokens: there is no such key; [[limits]] has model and max_input_tokens \
         of some models, such as model = \"*\"",
    ),
    (
        "[prices]\n\"gpt-4o\" = 3",
        "prices.gpt-4o: there is no such key; prices of a model are in [models.\"NAME\"], such as \
         input_usd_per_mtok and output_usd_per_mtok",
    ),
    (
        "[summaries]\nquality = \"x\"",
        "summaries.quality: there is no such key; its section has max_concurrent, max_usd_per_day, mode, model, \
         prefetch, summary_tokens, kept, reasoning, timeouts_ms, upstream",
    ),
    ("[events]\nurl = \"x\"", "events.url: there is no such key; did you mean events.webhook_url?"),
    (
        "[tls]\ncert = \"x\"",
        "tls: there is no such key; did you mean admin.tls or server.tls or upstream.tls?",
    ),
    ("[log]\nverbosity = 1", "log.verbosity: there is no such key; its section has format, level"),
    ("log = 1", "log: is a section: write its keys under [log]"),
    ("limits = 1", "limits: is a list: write each of its rows under [[limits]]"),
    ("[routes]\nmodels = [\"a\"]", "routes: is a list: write each of its rows under [[routes]]"),
    (
        "[models.gpt-4o]\ninput_usd_per_mtok = 1\noutput_usd_per_mtok = 1\n\
         [models.gpt-4o.tiers]\nabove_prompt_tokens = 1",
        "models.gpt-4o.tiers: is a list: write each of its rows under [[models.gpt-4o.tiers]]",
    ),
    (
        "[[limits]]\nmodel = \"a\"",
        "limits[0].max_input_tokens: is missing: a limit needs model and max_input_tokens",
    ),
    (
        "[[limits]]\nmodel = \"gpt-4o\"\nmax_input_tokens = 1\nmax_tokens = 2",
        "limits[0].max_tokens: there is no such key; did you mean limits[0].max_input_tokens?",
    ),
    (
        "[models.\"a/b.c\"]\nencoding = \"o200k\"\nwindow_tokens = 5",
        "models.\"a/b.c\".encoding: \"o200k\" is not an encoding; write \"o200k_base\", \
         \"cl100k_base\", \"p50k_base\", \"p50k_edit\", \"r50k_base\", \"deepseek_v3\", \
         \"llama3\", \"mistral_v3\", \"qwen2\" or \"estimate\"",
    ),
    (
        "[models.mine]\nwindow_tokens = 5\ntokenizer = \" \"",
        "models.mine.tokenizer: is empty; give the path of the tokenizer.json that comes with the \
         model",
    ),
    (
        "[models.gpt-4o]\ntokenizer = \"a.json\"\ntoken_ratio = 1.1",
        "models.gpt-4o.tokenizer: sets how the model's tokens are counted, as token_ratio does; \
         keep one",
    ),
    (
        "[models.nobodys]\nmax_output_tokens = 5",
        "models.nobodys.window_tokens: is missing: weir does not know this model, so it needs at \
         least window_tokens (input and output together)",
    ),
    (
        "[models.gpt-4o]\nmax_input_tokens = 200000",
        "models.gpt-4o.max_input_tokens: is more than the model's window_tokens (128000)",
    ),
    (
        "[budgets]\ntime_zone = \"Berlin\"",
        "budgets.time_zone: \"Berlin\" is not a time zone; write an IANA name, such as \
         \"Europe/Berlin\"",
    ),
];
