"""Tool calls for models without native tool calls."""
