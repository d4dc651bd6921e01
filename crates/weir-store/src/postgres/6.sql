-- What the caller counts a request to.
ALTER TABLE weir_request ADD COLUMN tag text;
