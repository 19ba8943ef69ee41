"""The command line ``qdo``.

The module of a command is imported only when the command runs, so that ``qdo --help`` is fast.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 ended by Ctrl-C; ``qdo work`` has more (see
docs/qdo-cli.md). Results go to standard output, notes and errors to standard error.
"""

from __future__ import annotations

from functools import partial

from qdo import __version__, errors
from queuey import client
from queuey.settings.setting_values import SettingsError
from queuey.terminal import output
from queuey.terminal.commands import LazyGroup, command_line

__all__ = ["main"]

COMMANDS = {
    "work": ("work:work", "Handle the messages of queues, sharing their partitions with the other workers of a group."),
    "status": ("status:status", "Show the members of a group, the owners of its partitions, its offsets and its lag."),
    "groups": ("status:groups", "List the groups of the coordination service."),
    "offsets": ("offsets:app", "Show the offsets of a group, or change them while the group has no members."),
    "deadletter": ("deadletter:app", "List dead letters, and send them back to their queues."),
    "curator": ("curator:app", "Move messages between Apache Curator's queues in ZooKeeper and Queuey."),
}
"""The commands in the order of the help, each with its place and its help line."""

_WRONG_USAGE = (errors.InvalidArgument, errors.HandlerError, client.InvalidArgument, SettingsError)


class QdoCommands(LazyGroup):
    PACKAGE = "qdo.cli"
    COMMANDS = COMMANDS


load = QdoCommands.load

app = command_line(
    "qdo", QdoCommands, release=__version__, about="Run workers that share the partitions of Queuey's queues."
)


def main() -> None:
    output.run(
        "qdo",
        partial(app, prog_name="qdo"),
        (errors.QdoError, client.ClientError, SettingsError),
        lambda error: isinstance(error, _WRONG_USAGE),
    )
