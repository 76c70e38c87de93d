-- Secrets that were found in messages and results. The tape holds a marker; the value is here, under the vault key.
-- Where a value came from is kept for each session, and goes with it; a value that came from nowhere any more goes too.

CREATE TABLE sealed_values (
    principal TEXT NOT NULL,
    sealed_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    sealed TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (principal, sealed_id)
);

CREATE TABLE sealed_origins (
    principal TEXT NOT NULL,
    sealed_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    origin TEXT NOT NULL,
    proof TEXT NOT NULL,
    first_ms BIGINT NOT NULL,
    PRIMARY KEY (principal, sealed_id, session_id, origin)
);
CREATE INDEX sealed_origins_of_session ON sealed_origins (session_id);
