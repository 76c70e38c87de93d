-- Names that the glossary has: columns, states and causes of turns, kinds of tasks, limits in the records of agents.
-- Entries of tapes stay as they are: they are read through `core/upcast.py`.
-- A release that knows the old names only refuses the journal from here on.

ALTER TABLE runs RENAME COLUMN place TO queue_position;
ALTER TABLE mcp_pins RENAME COLUMN place TO server_digest;
ALTER TABLE approvals RENAME COLUMN asked_ms TO requested_ms;

DROP INDEX stops_standing;
CREATE INDEX stops_in_force ON stops (stopped_ms) WHERE lifted_ms IS NULL;

UPDATE usage SET state = 'discarded' WHERE state = 'voided';
UPDATE usage SET cause = 'test' WHERE cause = 'trial';
UPDATE usage SET cause = 'unknown' WHERE cause = 'api';
UPDATE tasks SET kind = 'journal.cleanup' WHERE kind = 'journal.upkeep';

-- A colon follows these names only where they are keys of the limits: in a text the quotation mark would be escaped.
UPDATE agents SET record = REPLACE(REPLACE(REPLACE(REPLACE(record,
    '"last_turn_ms":', '"last_turn_timeout_ms":'), '"tool_ms":', '"tool_timeout_ms":'),
    '"depth":', '"max_depth":'), '"children":', '"max_children":');
