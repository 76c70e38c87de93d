"""The daemon as a process: start, stop, serve, service, logs."""
