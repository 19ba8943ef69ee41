"""The command line.

Each command's module is imported when that command runs, so that ``queuey --help`` stays quick.

Exit codes: 0 success, 1 failure, 2 wrong usage or settings; ``queuey serve`` has further ones (see docs/cli.md).
Results go to standard output, notes, progress and errors to standard error.
"""

from __future__ import annotations

from functools import partial

from queuey import __version__
from queuey.errors import QueueyError
from queuey.terminal import output
from queuey.terminal.commands import LazyGroup, command_line

__all__ = ["main"]

COMMANDS = {
    "serve": (
        "operations.serving:serve",
        "Start the service. The first start creates the store, a key and a profile for the client.",
    ),
    "demo": ("demo:demo", "Run the service on a real feed in a directory of its own, kill it, and lose nothing."),
    "migrate": ("operations.stores:migrate", "Prepare the keyspace of a Cassandra store, or bring it up to date."),
    "timing": (
        "operations.stores:timing",
        "Show or set the timing parameters of a Cassandra store.",
    ),
    "doctor": ("operations.stores:doctor", "Check the store's health, configuration and durability."),
    "backup": ("operations.stores:backup", "Copy a whole SQLite store into one file, while the service runs."),
    "restore": ("operations.stores:restore", "Make a backup the SQLite store of a directory."),
    "settings": ("operations.serving:show_settings", "Show every setting, its value and where the value comes from."),
    "send": ("sending:send", "Send messages: arguments, standard input, or the lines of a file, however long it is."),
    "put": ("sending:send", "Send messages; the same as send."),
    "get": ("messages:get", "Print messages by id, or the one that has a name."),
    "delete": ("messages:delete", "Delete messages by id, or the one that has a name."),
    "read": ("messages:read", "Read messages by time, all partitions merged. Nothing is removed."),
    "tail": ("messages:tail", "Follow a queue live."),
    "peek": ("messages:peek", "Print the oldest messages that are not acknowledged."),
    "size": ("messages:size", "Print how many messages are not acknowledged."),
    "claim": ("claiming:claim", "Claim messages of a queue of jobs, or run a program for each."),
    "ack": ("claiming:ack", "Acknowledge claimed messages."),
    "release": ("claiming:release", "Give claimed messages back."),
    "jobs": ("claiming:jobs", "Show how much is to be done, and who has what."),
    "queue": ("queues:app", "Create, list, update, delete and purge queues; move messages."),
    "schedule": ("scheduling:app", "Manage scheduled messages."),
    "explain": ("explaining:explain", "Say why a message is not read or claimed, or what readers of a queue see now."),
    "offsets": ("offsets:app", "Show and set how far consumer groups have processed a queue."),
    "group": ("groups:app", "Show consumer groups, their members, and who owns which partition."),
    "profile": ("profiles:profile", "Show or write the profile: which service and key commands use."),
    "app": ("operations.apps:app", "Manage applications and their keys, on the store itself."),
    "dev": ("dev:app", "Try users on this machine before there is an issuer."),
    "pipeline": (
        "pipeline:app",
        "Run jobs over whole queues on Spark: archive, replay, stats, audit, deadletter, pipe.",
    ),
}
"""By name, in the order shown: where it is, and its line in the list."""


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
