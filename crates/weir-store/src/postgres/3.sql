-- Conversations that are kept for callers. An `id` is never used again: a conversation that is replaced
-- or cleared gets another. Their sizes are counted like those of the values in `weir_entry`.
CREATE TABLE weir_conversation (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant bytea NOT NULL,
    name text COLLATE "C" NOT NULL,
    created_ms bigint NOT NULL,
    last_ms bigint,
    expires_ms bigint NOT NULL,
    messages bigint NOT NULL,
    weight_bytes bigint NOT NULL
);
CREATE UNIQUE INDEX weir_conversation_by_name ON weir_conversation (tenant, name);
CREATE INDEX weir_conversation_by_end ON weir_conversation (expires_ms);
CREATE INDEX weir_conversation_by_age ON weir_conversation (tenant, expires_ms);

-- Their messages, in the order of `place`. A conversation may begin with one that `opens` a turn.
CREATE TABLE weir_conversation_message (
    conversation bigint NOT NULL REFERENCES weir_conversation (id) ON DELETE CASCADE,
    place bigint NOT NULL,
    opens boolean NOT NULL,
    text bytea NOT NULL,
    PRIMARY KEY (conversation, place)
);

CREATE FUNCTION weir_weigh_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE weir_weight SET bytes = bytes - old.weight_bytes
            WHERE kind = 'conversation' AND tenant = old.tenant;
        DELETE FROM weir_weight
            WHERE kind = 'conversation' AND tenant = old.tenant AND bytes <= 0;
        UPDATE weir_total SET bytes = bytes - old.weight_bytes WHERE kind = 'conversation';
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO weir_weight VALUES ('conversation', new.tenant, new.weight_bytes)
            ON CONFLICT (kind, tenant) DO UPDATE SET bytes = weir_weight.bytes + excluded.bytes;
        INSERT INTO weir_total VALUES ('conversation', new.weight_bytes)
            ON CONFLICT (kind) DO UPDATE SET bytes = weir_total.bytes + excluded.bytes;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER weir_conversation_added AFTER INSERT ON weir_conversation
    FOR EACH ROW EXECUTE FUNCTION weir_weigh_conversation();
CREATE TRIGGER weir_conversation_weighed AFTER UPDATE ON weir_conversation
    FOR EACH ROW WHEN (old.weight_bytes <> new.weight_bytes)
    EXECUTE FUNCTION weir_weigh_conversation();
CREATE TRIGGER weir_conversation_removed AFTER DELETE ON weir_conversation
    FOR EACH ROW EXECUTE FUNCTION weir_weigh_conversation();

-- Deletes the excess: expired conversations, then the oldest of the tenant with the most data.
CREATE FUNCTION weir_evict_conversations(now_ms bigint, max_bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    held bigint;
BEGIN
    SELECT bytes INTO held FROM weir_total WHERE kind = 'conversation';
    IF held IS NULL OR held <= max_bytes THEN
        RETURN;
    END IF;
    DELETE FROM weir_conversation WHERE expires_ms <= now_ms;
    LOOP
        SELECT bytes INTO held FROM weir_total WHERE kind = 'conversation';
        EXIT WHEN held IS NULL OR held <= max_bytes;
        DELETE FROM weir_conversation WHERE id =
            (SELECT id FROM weir_conversation WHERE tenant =
                (SELECT tenant FROM weir_weight WHERE kind = 'conversation'
                 ORDER BY bytes DESC, tenant DESC LIMIT 1)
             ORDER BY expires_ms, id LIMIT 1);
        EXIT WHEN NOT FOUND;
    END LOOP;
END
$$;
