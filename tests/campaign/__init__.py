"""Campaigns: long trials of a real daemon under faults of all kinds. `scripts/campaign` runs them."""
