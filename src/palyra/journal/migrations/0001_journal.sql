-- The ground floor: sessions, runs and their tape, and the rows that follow from it.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    agent_id TEXT,
    key TEXT,
    label TEXT,
    title TEXT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    archived_ms BIGINT,
    reset_seq BIGINT NOT NULL DEFAULT 0,
    active_run_id TEXT,
    parent_session_id TEXT,
    message_count BIGINT NOT NULL DEFAULT 0,
    reset_count BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX sessions_by_key ON sessions (principal, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX sessions_by_label ON sessions (principal, label) WHERE label IS NOT NULL AND archived_ms IS NULL;
CREATE INDEX sessions_by_age ON sessions (principal, updated_ms, session_id);

-- The end of each session's tape. Whoever appends holds this row; it has no further index on purpose.
CREATE TABLE heads (
    session_id TEXT PRIMARY KEY,
    tape_seq BIGINT NOT NULL,
    hash TEXT NOT NULL
);

CREATE TABLE tape (
    session_id TEXT NOT NULL,
    tape_seq BIGINT NOT NULL,
    run_id TEXT,
    run_seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    content TEXT NOT NULL,
    salt TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (session_id, tape_seq)
);
CREATE INDEX tape_by_run ON tape (run_id, tape_seq);

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    principal TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    status TEXT NOT NULL,
    input TEXT NOT NULL,
    reason TEXT,
    limit_reached TEXT,
    parent_run_id TEXT,
    run_seq BIGINT NOT NULL,
    accepted_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    accepted_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    place BIGINT NOT NULL,
    turns BIGINT NOT NULL DEFAULT 0,
    tool_calls BIGINT NOT NULL DEFAULT 0,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    ready BIGINT NOT NULL,
    cancel_requested BIGINT NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_epoch BIGINT NOT NULL DEFAULT 0,
    lease_until_ms BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX runs_ready ON runs (accepted_ms) WHERE ready = 1;
CREATE INDEX runs_open ON runs (session_id, place) WHERE ended_ms IS NULL;
CREATE INDEX runs_by_agent ON runs (agent_id) WHERE ended_ms IS NULL;
CREATE INDEX runs_by_session ON runs (session_id, accepted_ms, run_id);
CREATE INDEX runs_by_principal ON runs (principal, accepted_ms, run_id);

-- One row for each finished message: what the next prompt is made of.
CREATE TABLE messages (
    session_id TEXT NOT NULL,
    tape_seq BIGINT NOT NULL,
    run_id TEXT NOT NULL,
    principal TEXT NOT NULL,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    calls TEXT NOT NULL,
    call_id TEXT,
    tokens BIGINT NOT NULL,
    labels TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (session_id, tape_seq)
);

CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    record TEXT NOT NULL,
    is_default BIGINT NOT NULL
);
CREATE INDEX agents_by_principal ON agents (principal);
CREATE UNIQUE INDEX agents_default ON agents (principal) WHERE is_default = 1;

CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    digest TEXT NOT NULL,
    name TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    revoked_ms BIGINT
);
CREATE UNIQUE INDEX tokens_by_digest ON tokens (digest);

CREATE TABLE idempotency (
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    answer TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (principal, key)
);
CREATE INDEX idempotency_by_age ON idempotency (created_ms);

CREATE TABLE tasks (
    task_id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    payload TEXT NOT NULL,
    status TEXT NOT NULL,
    not_before_ms BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    max_attempts BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    error TEXT,
    lease_owner TEXT,
    lease_epoch BIGINT NOT NULL DEFAULT 0,
    lease_until_ms BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX tasks_due ON tasks (not_before_ms) WHERE status = 'pending';
CREATE UNIQUE INDEX tasks_by_key ON tasks (kind, key) WHERE status = 'pending';

CREATE TABLE anchors (
    number BIGINT PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL,
    signature TEXT NOT NULL
);
CREATE TABLE anchored (
    session_id TEXT PRIMARY KEY,
    tape_seq BIGINT NOT NULL
);
