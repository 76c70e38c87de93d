"""Language models: one interface, and its implementations."""
