"""Language models: one port, and whoever answers behind it."""
