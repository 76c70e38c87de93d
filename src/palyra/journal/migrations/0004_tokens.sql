-- What a token may do, and until when. Tokens from before could do everything.

ALTER TABLE tokens ADD COLUMN scopes TEXT NOT NULL DEFAULT 'admin,read,write';
ALTER TABLE tokens ADD COLUMN expires_ms BIGINT;
CREATE INDEX tokens_by_principal ON tokens (principal, token_id);
