"""``python -m queuey`` is the command line."""

from queuey.cli import main

if __name__ == "__main__":
    main()
