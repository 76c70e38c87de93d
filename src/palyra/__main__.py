"""Lets `python -m palyra` do what `palyra` does."""

from palyra.cli.app import main

if __name__ == "__main__":
    main()
