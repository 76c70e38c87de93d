"""The HTTP door: decode, one call, encode."""
