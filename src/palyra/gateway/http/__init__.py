"""The HTTP API: decode, one call, encode."""
