-- What the caller counts a request to.
ALTER TABLE request ADD COLUMN tag TEXT;
