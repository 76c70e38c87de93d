"""The types and rules of the domain: pure code that does no I/O and never waits."""
