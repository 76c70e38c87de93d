"""HTTP to providers: sessions, server-sent events, one remote provider."""
