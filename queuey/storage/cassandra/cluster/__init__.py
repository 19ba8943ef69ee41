"""Access to Cassandra: the only package that imports the driver.

Code above it sees no exception, consistency constant or row type of the driver.
"""

from queuey.storage.cassandra.cluster.connection import Driver, open_driver
from queuey.storage.cassandra.cluster.topology import Host
from queuey.storage.cassandra.protocol.errors import InDoubt, TooManyDead, choose_worst
from queuey.storage.cassandra.protocol.requests import UNSET, Decode, Done, Encoded, Rows, Statement, StatementRequest

__all__ = [
    "UNSET",
    "Decode",
    "Done",
    "Driver",
    "Encoded",
    "Host",
    "InDoubt",
    "Rows",
    "Statement",
    "StatementRequest",
    "TooManyDead",
    "choose_worst",
    "open_driver",
]
