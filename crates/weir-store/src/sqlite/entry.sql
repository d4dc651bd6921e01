-- Values. `weight` and `total` hold the size of `entry` by tenant and in total. Triggers maintain them, so
-- that neither a limit nor the heaviest tenant requires a search.
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE entry (
    id INTEGER PRIMARY KEY,
    tenant BLOB NOT NULL,
    kind TEXT NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    expires_ms INTEGER NOT NULL,
    weight_bytes INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX entry_by_key ON entry (tenant, kind, key);
CREATE INDEX entry_by_end ON entry (expires_ms);
CREATE INDEX entry_by_age ON entry (tenant, kind, expires_ms);
CREATE TABLE weight (
    kind TEXT NOT NULL,
    tenant BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (kind, tenant)
) STRICT, WITHOUT ROWID;
CREATE INDEX weight_by_bytes ON weight (kind, bytes, tenant);
CREATE TABLE total (kind TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER entry_added AFTER INSERT ON entry BEGIN
    INSERT INTO weight VALUES (new.kind, new.tenant, new.weight_bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
    INSERT INTO total VALUES (new.kind, new.weight_bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER entry_weighed AFTER UPDATE OF weight_bytes ON entry BEGIN
    UPDATE weight SET bytes = bytes + new.weight_bytes - old.weight_bytes
        WHERE kind = new.kind AND tenant = new.tenant;
    UPDATE total SET bytes = bytes + new.weight_bytes - old.weight_bytes
        WHERE kind = new.kind;
END;
CREATE TRIGGER entry_removed AFTER DELETE ON entry BEGIN
    UPDATE weight SET bytes = bytes - old.weight_bytes
        WHERE kind = old.kind AND tenant = old.tenant;
    DELETE FROM weight WHERE kind = old.kind AND tenant = old.tenant AND bytes <= 0;
    UPDATE total SET bytes = bytes - old.weight_bytes WHERE kind = old.kind;
END;
