-- Content by its digest, in parts; what it belongs to: results that were too long, and files as they were.

CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    size BIGINT NOT NULL,
    stored_ms BIGINT NOT NULL
);

CREATE TABLE blob_parts (
    digest TEXT NOT NULL,
    part BIGINT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (digest, part)
);

CREATE TABLE artifacts (
    artifact_id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    what TEXT NOT NULL,
    digest TEXT NOT NULL,
    size BIGINT NOT NULL,
    made_ms BIGINT NOT NULL
);
CREATE INDEX artifacts_by_session ON artifacts (session_id);
CREATE INDEX artifacts_by_digest ON artifacts (digest);

CREATE TABLE checkpoints (
    checkpoint_id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT,
    call_id TEXT,
    what TEXT NOT NULL,
    root TEXT NOT NULL,
    path TEXT NOT NULL,
    before_digest TEXT,
    before_mode BIGINT,
    after_digest TEXT,
    restores TEXT,
    at_ms BIGINT NOT NULL
);
CREATE INDEX checkpoints_by_principal ON checkpoints (principal, checkpoint_id);
CREATE INDEX checkpoints_by_path ON checkpoints (principal, path, checkpoint_id);
CREATE INDEX checkpoints_by_session ON checkpoints (session_id, checkpoint_id);
CREATE INDEX checkpoints_by_call ON checkpoints (run_id, call_id);
CREATE INDEX checkpoints_by_digest ON checkpoints (before_digest);
