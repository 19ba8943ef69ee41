"""The command line: ``qdo``, and ``python -m qdo``."""

from queuey.model.extras import require
from queuey.terminal.signals import end_silently_on_signals


def main() -> None:
    end_silently_on_signals()
    require("worker", "qdo", SystemExit)
    from qdo.cli import main as run  # noqa: PLC0415 - slow to import

    run()


if __name__ == "__main__":
    main()
