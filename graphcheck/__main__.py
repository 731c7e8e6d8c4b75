"""``python -m graphcheck``: the command line from a checkout."""

from graphcheck.cli import main

if __name__ == "__main__":
    main()
