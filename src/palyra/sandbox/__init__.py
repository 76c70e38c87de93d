"""Isolates untrusted work from the machine: confined paths, and processes that can be killed."""
