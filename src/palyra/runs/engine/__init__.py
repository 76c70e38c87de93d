"""Executes runs: worker, loop, steps."""
