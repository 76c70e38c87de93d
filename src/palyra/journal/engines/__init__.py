"""The database port and its two engines, SQLite and PostgreSQL."""
