"""Entry point of the command line: ``queuey``, and ``python -m queuey``."""

from queuey.model.extras import require
from queuey.terminal.signals import end_silently_on_signals


def main() -> None:
    end_silently_on_signals()
    require("cli", "queuey", SystemExit)
    from queuey.cli import main as run  # noqa: PLC0415 - this takes a while

    run()


if __name__ == "__main__":
    main()
