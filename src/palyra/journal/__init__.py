"""The journal: two database engines, one store per noun, and the tape. All SQL is in this package."""
