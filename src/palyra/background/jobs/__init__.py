"""The jobs of the task queue: one file per kind of task."""
