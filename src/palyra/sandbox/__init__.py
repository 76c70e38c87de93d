"""Where untrusted input meets the machine: confined paths, and work that can be killed."""
