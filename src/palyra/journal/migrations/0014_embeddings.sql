-- Calls for embeddings stand in the ledger without a run that somebody would carry. Who waits for one says so here, and
-- until when: of a call that nobody waits for any more, nobody will ever tell what it took.

ALTER TABLE usage ADD COLUMN lease_owner TEXT;
ALTER TABLE usage ADD COLUMN lease_until_ms BIGINT NOT NULL DEFAULT 0;
CREATE INDEX usage_of_embeddings ON usage (session_id, run_id) WHERE cause = 'embeddings';
CREATE INDEX usage_embeddings_open ON usage (at_ms) WHERE cause = 'embeddings' AND state = 'reserved';
