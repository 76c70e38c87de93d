"""The vault: its key, stored secrets, and secrets sealed in texts."""
