"""The OpenAI-compatible API below `/v1`."""
