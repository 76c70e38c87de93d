-- Grants by the first words of a command end: an option of a harmless command can run any other program.

UPDATE grants SET revoked_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000
WHERE revoked_ms IS NULL AND SUBSTR(kind, 1, 8) = 'command:';
