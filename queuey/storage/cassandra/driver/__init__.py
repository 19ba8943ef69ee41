"""The way to Cassandra: the only package that imports the driver.

Nothing above it sees an exception, a consistency constant or a row type of the driver.
"""

from queuey.storage.cassandra.driver.connection import Driver, Host, routing_key
from queuey.storage.cassandra.driver.errors import InDoubt, TooManyDead
from queuey.storage.cassandra.driver.requests import UNSET, Rows, Statement

__all__ = ["UNSET", "Driver", "Host", "InDoubt", "Rows", "Statement", "TooManyDead", "routing_key"]
