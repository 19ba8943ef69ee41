"""The command line.

Each command's module is imported when that command runs, so that ``queuey --help`` stays quick.

Exit codes: 0 success, 1 failure, 2 wrong usage or settings; ``queuey serve`` has further ones (see docs/cli.md).
Results go to standard output, notes, progress and errors to standard error.
"""

from __future__ import annotations

from functools import partial

from queuey import __version__
from queuey.model.errors import QueueyError
from queuey.terminal import output
from queuey.terminal.commands import LazyGroup, command_line

__all__ = ["main"]

COMMANDS = {
    "serve": (
        "operations.serving:serve",
        "Start the service. The first start creates the store, a key and a profile for the client.",
    ),
    "demo": ("dev:demo", "Run the service on a real feed, kill it, and show that no message is lost."),
    "migrate": ("operations.stores:migrate", "Prepare the keyspace of a Cassandra store, or bring it up to date."),
    "timing": ("operations.stores:timing", "Show or set the timing parameters of a Cassandra store."),
    "doctor": ("operations.stores:doctor", "Check the store's health, configuration and durability."),
    "backup": ("operations.stores:backup", "Copy a SQLite store into one file while the service runs."),
    "restore": ("operations.stores:restore", "Restore a SQLite store from a backup."),
    "settings": ("operations.serving:show_settings", "Show every setting, its value and where the value comes from."),
    "send": ("sending:send", "Send messages from arguments, standard input, or the lines of a file."),
    "get": ("messages:get", "Print messages by id or name."),
    "delete": ("messages:delete", "Delete messages by id or name."),
    "read": ("messages:read", "Read messages in time order, all partitions merged. Removes nothing."),
    "tail": ("messages:tail", "Follow a queue live."),
    "peek": ("messages:peek", "Print the oldest unacknowledged messages."),
    "claim": ("claiming:claim", "Claim messages of a job queue, or run a program for each one."),
    "ack": ("claiming:ack", "Acknowledge claimed messages."),
    "release": ("claiming:release", "Release claimed messages for redelivery."),
    "jobs": ("claiming:jobs", "Show the backlog of a job queue and its delivered jobs; cancel or retry jobs."),
    "queue": ("queues:app", "Create, list, update, delete and purge queues; move messages."),
    "schedule": ("scheduling:app", "Manage scheduled messages."),
    "explain": (
        "explaining:explain",
        "Explain why a message is not read or claimed, or what readers of a queue see now.",
    ),
    "offsets": ("offsets:app", "Show, set and delete the offsets of consumer groups."),
    "group": ("groups:app", "Show consumer groups, their members, and the owner of each partition."),
    "profile": ("profiles:profile", "Show or write the profile: the service and key that commands use."),
    "app": ("operations.apps:app", "Manage applications and their keys, directly in the store."),
    "dev": ("dev:app", "Create a local issuer and tokens, to develop with users."),
    "pipeline": (
        "pipeline:app",
        "Run jobs over whole queues on Spark: archive, replay, stats, audit, deadletter, pipe.",
    ),
}
"""Maps each command, in the order shown, to its ``module:attribute`` and its line in the help."""


class QueueyCommands(LazyGroup):
    PACKAGE = "queuey.cli"
    COMMANDS = COMMANDS


_WRONG_USAGE = {"InvalidArgument", "SettingsError"}

load = QueueyCommands.load

app = command_line(
    "queuey", QueueyCommands, release=__version__, about="A partitioned message store behind a REST API."
)


def main() -> None:
    output.run(
        "queuey",
        partial(app, prog_name="queuey"),
        (QueueyError,),
        lambda error: getattr(error, "code", "") in _WRONG_USAGE,
    )
