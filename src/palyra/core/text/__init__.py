"""Text: escaping, redaction of secrets, scanners, token bounds."""
