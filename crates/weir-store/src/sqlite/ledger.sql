-- Virtual keys, the journal of requests and what it adds up to. Money in nano-dollars, times in
-- milliseconds, moments in milliseconds since 1970. NULL is what is not known; zero is a figure.

CREATE TABLE organisation (
    name TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE team (
    name TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who may do what. `settings` is a JSON object: models, policies, policy, passthrough, limits.
CREATE TABLE virtual_key (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    team TEXT NOT NULL,
    user TEXT NOT NULL,
    settings TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX virtual_key_by_team ON virtual_key (team);

-- What a caller proves that it is a key by: keyed hashes alone. A key has two while it is rotated.
CREATE TABLE key_secret (
    hash BLOB PRIMARY KEY,
    key TEXT NOT NULL,
    hint TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX key_secret_by_key ON key_secret (key);

-- Requests that were sent, or are about to be, and have not ended.
CREATE TABLE intent (
    id BLOB PRIMARY KEY,
    instance BLOB NOT NULL,
    begun_ms INTEGER NOT NULL,
    facts TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Requests that have ended, one row each. Ids begin with the moment they were made at, so that rows
-- lie in their order.
CREATE TABLE request (
    id BLOB PRIMARY KEY,
    begun_ms INTEGER NOT NULL,
    tenant BLOB NOT NULL,
    key TEXT,
    team TEXT,
    organisation TEXT,
    user TEXT,
    route TEXT NOT NULL,
    model TEXT NOT NULL,
    upstream TEXT NOT NULL,
    stream INTEGER NOT NULL,
    status INTEGER,
    outcome TEXT NOT NULL,
    action TEXT NOT NULL,
    zone TEXT NOT NULL,
    received_tokens INTEGER,
    sent_tokens INTEGER,
    prompt_tokens INTEGER,
    completion_tokens INTEGER,
    cached_tokens INTEGER,
    cache_write_tokens INTEGER,
    reasoning_tokens INTEGER,
    cost_nano_usd INTEGER,
    saved_nano_usd INTEGER,
    flags INTEGER NOT NULL,
    plan_ms INTEGER,
    first_byte_ms INTEGER,
    total_ms INTEGER
) STRICT, WITHOUT ROWID;

-- Rows that somebody may have to look at: see `Flags::RARE`.
CREATE INDEX request_rare ON request (id) WHERE flags & 15 <> 0;

-- Sums over a day (UTC) of what `request` holds; they outlive its rows.
CREATE TABLE usage_day (
    day INTEGER NOT NULL,
    tenant BLOB NOT NULL,
    key TEXT NOT NULL,
    team TEXT NOT NULL,
    organisation TEXT NOT NULL,
    user TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    partly_priced INTEGER NOT NULL,
    unpriced INTEGER NOT NULL,
    received_tokens INTEGER NOT NULL,
    sent_tokens INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost_nano_usd INTEGER NOT NULL,
    saved_nano_usd INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, key, team, organisation, user, model)
) STRICT, WITHOUT ROWID;

-- What requests of a model usually write, for those whose end was not seen.
CREATE TABLE learned_output (
    model TEXT PRIMARY KEY,
    requests INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
