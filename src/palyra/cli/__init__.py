"""The command line: one file for each noun, each loaded only when its command is used."""
