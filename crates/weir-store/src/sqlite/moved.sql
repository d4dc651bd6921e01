-- How far the log of each process is moved into the tables. What has ended of it before that place is
-- in `request`, and what is open in `intent` if its segment is one before.
CREATE TABLE moved (
    instance BLOB PRIMARY KEY,
    segment INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
