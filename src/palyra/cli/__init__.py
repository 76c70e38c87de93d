"""The command line: one file for each noun, each imported only when its command is used."""
