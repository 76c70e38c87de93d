"""Programs in a sandbox: tiers, limits, supervisor."""
