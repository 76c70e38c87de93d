"""The only way to write to a session: session writer, run writer, replay."""
