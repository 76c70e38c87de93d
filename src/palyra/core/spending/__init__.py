"""Budgets, prices, token usage and the reports about them."""
