"""Errors of the Spark package, in addition to those of :mod:`queuey.model.errors`.

::

    QueueyError
    ├── OptionError       an option, a schema or a column is not valid; also a ValueError
    ├── DataLoss          messages to be read are gone: expired, purged or deleted
    └── SparkMissing      PySpark or a suitable Java is missing

Spark shows errors of a data source at the end of a traceback, so every message is understandable without context.
"""

from __future__ import annotations

from queuey.model.errors import QueueyError


class OptionError(QueueyError, ValueError):
    """An option, a schema or a column is not valid. Nothing was read or written."""

    code = "InvalidArgument"


class DataLoss(QueueyError):
    """Messages that were to be read do not exist any more."""


class SparkMissing(QueueyError):
    """PySpark is not installed, or there is no Java on which it runs."""
