"""The built-in helper: a few plain requests understood by fixed rules, without key or network."""
