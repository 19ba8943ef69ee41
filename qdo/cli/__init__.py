"""The command line.

The module of a command is imported when that command runs, so that ``qdo --help`` stays quick.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 ended by Ctrl-C; ``qdo work`` has further ones (see
docs/qdo-cli.md). Results go to standard output, notes and errors to standard error.
"""

from __future__ import annotations

from functools import partial

from qdo import __version__, errors
from queuey import client
from queuey.terminal import output
from queuey.terminal.commands import LazyGroup, command_line
from queuey.terminal.setting_values import SettingsError

__all__ = ["main"]

COMMANDS = {
    "work": ("work:work", "Handle the messages of queues, sharing their partitions with the other workers of a group."),
    "status": (
        "status:status",
        "Show a group: its members, who owns what, offsets and how many messages are behind them.",
    ),
    "groups": ("status:groups", "List the groups that the coordination service knows, or forget one."),
    "offsets": ("offsets:app", "Show and change the offsets of a group, which must have no members for a change."),
    "deadletter": ("deadletter:app", "List dead letters, and send them back to their queues."),
    "curator": ("curator:app", "Move messages between Apache Curator's queues in ZooKeeper and Queuey."),
}
"""By name, in the order shown: where it is, and its line in the list."""

_WRONG_USAGE = (errors.InvalidArgument, errors.HandlerError, client.InvalidArgument, SettingsError)


class QdoCommands(LazyGroup):
    PACKAGE = "qdo.cli"
    COMMANDS = COMMANDS


load = QdoCommands.load

app = command_line(
    "qdo", QdoCommands, release=__version__, about="Workers that share out the partitions of Queuey's queues."
)


def main() -> None:
    output.run(
        "qdo",
        partial(app, prog_name="qdo"),
        (errors.QdoError, client.ClientError, SettingsError),
        lambda error: isinstance(error, _WRONG_USAGE),
    )
