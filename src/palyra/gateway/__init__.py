"""The doors to the daemon, and the client that the command line knocks with."""
