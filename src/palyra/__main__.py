"""Makes `python -m palyra` run the `palyra` command."""

from palyra.cli.app import main

if __name__ == "__main__":
    main()
