"""The run loop: intake, worker, steps, and the doors through which others write to a run."""
