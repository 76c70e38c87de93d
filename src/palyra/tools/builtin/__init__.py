"""The tools that come with Palyra; files here do not know one another."""
