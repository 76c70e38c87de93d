-- Questions to a person about calls, their answers, and the allowances that answers leave behind.
-- Both follow from the tape.

CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    arguments TEXT NOT NULL,
    effect TEXT NOT NULL,
    reason TEXT NOT NULL,
    policies TEXT NOT NULL,
    policy_hash TEXT NOT NULL,
    labels TEXT NOT NULL,
    asked_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    decision TEXT,
    scope TEXT,
    answered_ms BIGINT,
    answered_by TEXT,
    answer TEXT NOT NULL DEFAULT ''
);
CREATE INDEX approvals_by_principal ON approvals (principal, asked_ms, approval_id);
CREATE INDEX approvals_open ON approvals (principal, asked_ms, approval_id) WHERE decision IS NULL;
CREATE INDEX approvals_by_run ON approvals (run_id);

CREATE TABLE grants (
    grant_id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    kind TEXT NOT NULL,
    policy_hash TEXT NOT NULL,
    label TEXT NOT NULL,
    scope TEXT NOT NULL,
    session_id TEXT,
    granted_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT
);
CREATE INDEX grants_by_principal ON grants (principal, granted_ms, grant_id);
