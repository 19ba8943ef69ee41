"""``python -m qdo`` is the command line."""

from qdo.cli import main

if __name__ == "__main__":
    main()
