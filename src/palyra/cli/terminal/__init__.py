"""Output to terminals and pipes."""
