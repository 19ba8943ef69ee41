"""The command line.

Each command's module is imported when that command runs, so that ``queuey --help`` stays quick.

Exit codes: 0 success, 1 failure, 2 wrong usage or settings; ``queuey serve`` has further ones (see docs/cli.md).
Results go to standard output, notes, progress and errors to standard error.
"""

from __future__ import annotations

from queuey import __version__, terminal
from queuey.errors import QueueyError
from queuey.terminal.commands import LazyGroup, command_line

__all__ = ["main"]

COMMANDS = {
    "serve": "Start the service. The first start creates the store, a key and a profile for the client.",
    "migrate": "Prepare the keyspace of a Cassandra store, or bring it up to date.",
    "timing": "Show the times that all processes of a Cassandra store go by, or have them go by others.",
    "doctor": "Check the store's health, configuration and durability.",
    "backup": "Copy a whole SQLite store into one file, while the service runs.",
    "restore": "Make a backup the SQLite store of a directory.",
    "settings": "Show every setting, its value and where the value comes from.",
    "send": "Send messages: arguments, standard input, or the lines of a file, however long it is.",
    "read": "Read messages by time, all partitions merged. Nothing is removed.",
    "tail": "Follow a queue live.",
    "claim": "Claim messages of a queue of jobs, or run a program for each.",
    "ack": "Say that claimed messages are done.",
    "release": "Give claimed messages back.",
    "jobs": "Show how much is to be done, and who has what.",
    "queue": "Create, list, update, delete and purge queues; move messages.",
    "schedule": "Have messages be posted at certain times.",
    "explain": "Say why a message is not read or claimed, or what readers of a queue see now.",
    "offsets": "Show and set how far consumer groups have processed a queue.",
    "app": "Manage applications and their keys, on the store itself.",
    "dev": "Try users on this machine before there is an issuer.",
    "pipeline": "Run jobs over whole queues on Spark: archive, replay, stats, audit, deadletter, pipe.",
}
"""The commands in the order shown, each with its line in the list."""

_MODULES = {
    "serve": "operations.serving:serve_app",
    "migrate": "operations.migrating:app",
    "timing": "operations.timing:app",
    "doctor": "operations.doctor:app",
    "backup": "operations.backups:backup_app",
    "restore": "operations.backups:restore_app",
    "settings": "operations.serving:settings_app",
    "send": "sending:app",
    "read": "reading:read_app",
    "tail": "reading:tail_app",
    "claim": "claiming:claim_app",
    "ack": "claiming:ack_app",
    "release": "claiming:release_app",
    "jobs": "claiming:jobs_app",
    "queue": "queues:app",
    "schedule": "scheduling:app",
    "explain": "explaining:app",
    "offsets": "offsets:app",
    "app": "operations.apps:app",
    "dev": "dev:app",
    "pipeline": "pipeline:app",
}


class QueueyCommands(LazyGroup):
    LISTED = COMMANDS
    MODULES = {name: f"queuey.cli.{place}" for name, place in _MODULES.items()}  # noqa: RUF012 - as its parent declares it


load = QueueyCommands.load

app = command_line(
    "queuey", QueueyCommands, release=__version__, about="A partitioned message store behind a REST API."
)


def main() -> None:
    terminal.run("queuey", app, (QueueyError,), lambda error: getattr(error, "code", "") == "InvalidArgument")
