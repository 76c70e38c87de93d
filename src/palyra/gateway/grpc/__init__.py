"""The gRPC door: decode, one call, encode."""
