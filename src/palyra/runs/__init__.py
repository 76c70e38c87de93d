"""The run loop: intake, worker, steps, and the services through which others write to a run."""
