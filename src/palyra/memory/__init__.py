"""Prompt assembly from the history of a session."""
