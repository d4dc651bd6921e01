-- What a weir keeps in PostgreSQL. Moments in milliseconds since 1970 by the clocks of weirs, but for
-- who lives, which is by the server's alone. Texts sort by their bytes, as they do elsewhere.

CREATE TABLE weir_meta (name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL);

-- Counts changes of values. Those of one kind are committed in its order.
CREATE SEQUENCE weir_change;
-- Values. What they weigh by tenant and altogether is kept by triggers, so that neither a limit nor
-- the heaviest tenant has to be searched for.
CREATE TABLE weir_entry (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    tenant bytea NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    expires_ms bigint NOT NULL,
    weight_bytes bigint NOT NULL,
    change bigint NOT NULL DEFAULT nextval('weir_change')
);
CREATE INDEX weir_entry_by_change ON weir_entry (kind, change);
CREATE UNIQUE INDEX weir_entry_by_key ON weir_entry (kind, tenant, key);
CREATE INDEX weir_entry_by_end ON weir_entry (kind, expires_ms);
CREATE INDEX weir_entry_by_age ON weir_entry (kind, tenant, expires_ms, id);
CREATE TABLE weir_weight (
    kind text COLLATE "C" NOT NULL,
    tenant bytea NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (kind, tenant)
);
CREATE INDEX weir_weight_by_bytes ON weir_weight (kind, bytes, tenant);
CREATE TABLE weir_total (kind text COLLATE "C" PRIMARY KEY, bytes bigint NOT NULL);

CREATE FUNCTION weir_weigh() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE weir_weight SET bytes = bytes - old.weight_bytes
            WHERE kind = old.kind AND tenant = old.tenant;
        DELETE FROM weir_weight WHERE kind = old.kind AND tenant = old.tenant AND bytes <= 0;
        UPDATE weir_total SET bytes = bytes - old.weight_bytes WHERE kind = old.kind;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO weir_weight VALUES (new.kind, new.tenant, new.weight_bytes)
            ON CONFLICT (kind, tenant) DO UPDATE SET bytes = weir_weight.bytes + excluded.bytes;
        INSERT INTO weir_total VALUES (new.kind, new.weight_bytes)
            ON CONFLICT (kind) DO UPDATE SET bytes = weir_total.bytes + excluded.bytes;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER weir_entry_added AFTER INSERT ON weir_entry
    FOR EACH ROW EXECUTE FUNCTION weir_weigh();
CREATE TRIGGER weir_entry_weighed AFTER UPDATE OF weight_bytes ON weir_entry
    FOR EACH ROW WHEN (old.weight_bytes <> new.weight_bytes) EXECUTE FUNCTION weir_weigh();
CREATE TRIGGER weir_entry_removed AFTER DELETE ON weir_entry
    FOR EACH ROW EXECUTE FUNCTION weir_weigh();

-- Lets one at a time change what a kind weighs, before any row is locked: so nobody waits in a ring.
-- What is written here may be lost with the server's machine for a moment after it was committed.
CREATE FUNCTION weir_hold(of_kind text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(
        hashtextextended('weir kind ' || current_schema() || ' ' || of_kind, 0));
END
$$;

-- Deletes what is too much of a kind: what has ended, then the oldest of whoever holds most.
CREATE FUNCTION weir_evict(of_kind text, now_ms bigint, max_bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    held bigint;
BEGIN
    SELECT bytes INTO held FROM weir_total WHERE kind = of_kind;
    IF held IS NULL OR held <= max_bytes THEN
        RETURN;
    END IF;
    DELETE FROM weir_entry WHERE kind = of_kind AND expires_ms <= now_ms;
    LOOP
        SELECT bytes INTO held FROM weir_total WHERE kind = of_kind;
        EXIT WHEN held IS NULL OR held <= max_bytes;
        DELETE FROM weir_entry WHERE id =
            (SELECT id FROM weir_entry WHERE kind = of_kind AND tenant =
                (SELECT tenant FROM weir_weight WHERE kind = of_kind
                 ORDER BY bytes DESC, tenant DESC LIMIT 1)
             ORDER BY expires_ms, id LIMIT 1);
        EXIT WHEN NOT FOUND;
    END LOOP;
END
$$;

CREATE FUNCTION weir_put(of_kind text, of_tenant bytea, keys bytea[], texts bytea[],
    ends_ms bigint[], weights bigint[], now_ms bigint, max_bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM weir_hold(of_kind);
    INSERT INTO weir_entry (kind, tenant, key, value, expires_ms, weight_bytes)
        SELECT of_kind, of_tenant, given.k, given.v, given.e, given.w
        FROM unnest(keys, texts, ends_ms, weights) WITH ORDINALITY AS given (k, v, e, w, place)
        ORDER BY given.place
        ON CONFLICT (kind, tenant, key) DO UPDATE SET value = excluded.value,
            expires_ms = excluded.expires_ms, weight_bytes = excluded.weight_bytes,
            change = excluded.change;
    PERFORM weir_evict(of_kind, now_ms, max_bytes);
END
$$;

-- Gives the values that stand, in the order of the keys.
CREATE FUNCTION weir_put_if_absent(of_kind text, of_tenant bytea, keys bytea[], texts bytea[],
    ends_ms bigint[], weights bigint[], now_ms bigint, max_bytes bigint) RETURNS bytea[]
LANGUAGE plpgsql AS $$
DECLARE
    stand bytea[];
BEGIN
    PERFORM weir_hold(of_kind);
    DELETE FROM weir_entry WHERE kind = of_kind AND tenant = of_tenant AND key = ANY (keys)
        AND expires_ms <= now_ms;
    INSERT INTO weir_entry (kind, tenant, key, value, expires_ms, weight_bytes)
        SELECT of_kind, of_tenant, given.k, given.v, given.e, given.w
        FROM unnest(keys, texts, ends_ms, weights) WITH ORDINALITY AS given (k, v, e, w, place)
        ORDER BY given.place
        ON CONFLICT (kind, tenant, key) DO NOTHING;
    SELECT array_agg(entry.value ORDER BY given.place) INTO stand
        FROM unnest(keys) WITH ORDINALITY AS given (k, place)
        JOIN weir_entry entry
            ON entry.kind = of_kind AND entry.tenant = of_tenant AND entry.key = given.k;
    PERFORM weir_evict(of_kind, now_ms, max_bytes);
    RETURN stand;
END
$$;

-- Deletes some of what has ended of a kind; how many entries that were.
CREATE FUNCTION weir_delete_ended(of_kind text, now_ms bigint, most bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    deleted bigint;
BEGIN
    PERFORM weir_hold(of_kind);
    DELETE FROM weir_entry WHERE id IN
        (SELECT id FROM weir_entry WHERE kind = of_kind AND expires_ms <= now_ms LIMIT most);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;

-- Virtual keys.
CREATE TABLE weir_organisation (name text COLLATE "C" PRIMARY KEY, created_ms bigint NOT NULL);
CREATE TABLE weir_team (
    name text COLLATE "C" PRIMARY KEY,
    organisation text COLLATE "C" NOT NULL,
    created_ms bigint NOT NULL
);
-- Who may do what. `settings` is a JSON object.
CREATE TABLE weir_virtual_key (
    id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    team text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    settings text NOT NULL,
    created_ms bigint NOT NULL,
    expires_ms bigint,
    revoked_ms bigint
);
CREATE INDEX weir_virtual_key_by_team ON weir_virtual_key (team);
-- What a caller proves that it is a key by: keyed hashes alone. A key has two while it is rotated.
CREATE TABLE weir_key_secret (
    hash bytea PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    hint text COLLATE "C" NOT NULL,
    created_ms bigint NOT NULL,
    expires_ms bigint
);
CREATE INDEX weir_key_secret_by_key ON weir_key_secret (key);

-- How much may be spent: by scope, measure and window, as `id` names them. `settings` is a JSON object.
CREATE TABLE weir_budget (
    id text COLLATE "C" PRIMARY KEY,
    settings text NOT NULL,
    created_ms bigint NOT NULL
);

-- Who lives, by the server's clock: `seen` again and again, without a gap from `since` on.
CREATE TABLE weir_instance (
    id bytea PRIMARY KEY,
    since timestamptz NOT NULL,
    seen timestamptz NOT NULL
);

-- Requests that were sent, or are about to be, and have not ended. `claimed_by` is who settles one
-- whose instance has ended.
CREATE TABLE weir_intent (
    id bytea PRIMARY KEY,
    instance bytea NOT NULL,
    begun_ms bigint NOT NULL,
    facts text NOT NULL,
    claimed_by bytea,
    claimed_at timestamptz
);

-- Requests that have ended, one row each. Ids begin with the moment they were made at.
CREATE TABLE weir_request (
    id bytea PRIMARY KEY,
    begun_ms bigint NOT NULL,
    tenant bytea NOT NULL,
    key text COLLATE "C",
    team text COLLATE "C",
    organisation text COLLATE "C",
    "user" text COLLATE "C",
    route text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    upstream text COLLATE "C" NOT NULL,
    stream boolean NOT NULL,
    status bigint,
    outcome text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    zone text COLLATE "C" NOT NULL,
    received_tokens bigint,
    sent_tokens bigint,
    prompt_tokens bigint,
    completion_tokens bigint,
    cached_tokens bigint,
    cache_write_tokens bigint,
    reasoning_tokens bigint,
    cost_nano_usd bigint,
    saved_nano_usd bigint,
    flags bigint NOT NULL,
    plan_ms bigint,
    first_byte_ms bigint,
    total_ms bigint
);
-- Rows that somebody may have to look at.
CREATE INDEX weir_request_rare ON weir_request (id) WHERE flags & 15 <> 0;

-- Sums over a day (UTC) of what `weir_request` holds; they outlive its rows.
CREATE TABLE weir_usage_day (
    day bigint NOT NULL,
    tenant bytea NOT NULL,
    key text COLLATE "C" NOT NULL,
    team text COLLATE "C" NOT NULL,
    organisation text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    requests bigint NOT NULL,
    failed bigint NOT NULL,
    estimated bigint NOT NULL,
    partly_priced bigint NOT NULL,
    unpriced bigint NOT NULL,
    received_tokens bigint NOT NULL,
    sent_tokens bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    cost_nano_usd bigint NOT NULL,
    saved_nano_usd bigint NOT NULL,
    PRIMARY KEY (day, tenant, key, team, organisation, "user", model)
);

-- What requests of a model usually write, for those whose end was not seen.
CREATE TABLE weir_learned_output (
    model text COLLATE "C" PRIMARY KEY,
    requests bigint NOT NULL,
    completion_tokens bigint NOT NULL
);
