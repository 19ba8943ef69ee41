"""The command line: ``qdo``, and ``python -m qdo``."""

import signal


def main() -> None:
    """Runs the command line and ends the process. Until that has been imported, Ctrl-C ends it without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from qdo.cli import main as run  # noqa: PLC0415 - this takes a while

    run()


if __name__ == "__main__":
    main()
