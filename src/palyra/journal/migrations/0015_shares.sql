-- Runs are claimed in turn by principal, and what a principal has open is counted with each message. Both are asked
-- often, so these indexes hold all that the answers need.

DROP INDEX runs_ready;
CREATE INDEX runs_ready ON runs (principal, accepted_ms, run_id, lease_owner, lease_until_ms) WHERE ready = 1;
DROP INDEX runs_by_agent;
CREATE INDEX runs_open_by_principal ON runs (principal, agent_id, ended_ms) WHERE ended_ms IS NULL;
