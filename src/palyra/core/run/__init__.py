"""The run: its state, the machine that folds events into it, and the next step."""
