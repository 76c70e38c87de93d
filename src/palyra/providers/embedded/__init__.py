"""The built-in helper: answers a few plain requests by fixed rules, without key or network."""
