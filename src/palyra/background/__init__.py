"""Background work: the task queue, its jobs, and the anchors."""
