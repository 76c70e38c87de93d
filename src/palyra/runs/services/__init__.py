"""The services that endpoints call: intake, approvals, sessions, emergency stops and others."""
