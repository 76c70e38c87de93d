"""Attacks on a real daemon: each case tries one thing that must not work. `scripts/attack` runs them."""
