"""Durable records: two engines, one store per noun, the tape. The only place with SQL."""
