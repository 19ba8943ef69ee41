"""Errors of the Spark package, in addition to those of :mod:`queuey.errors`.

::

    QueueyError
    ├── OptionError       an option, a schema or a column that cannot be used; also a ValueError
    ├── DataLoss          what was to be read is gone: expired, purged or deleted
    └── SparkMissing      no PySpark, or no Java that it runs on

Spark shows what a data source raises as the end of a traceback, so every message is one sentence that stands for
itself.
"""

from __future__ import annotations

from queuey.errors import QueueyError


class OptionError(QueueyError, ValueError):
    """An option, a schema or a column that cannot be used. Nothing was read or written."""

    code = "InvalidArgument"


class DataLoss(QueueyError):
    """Messages that were to be read are not there any more."""

    code = "DataLoss"


class SparkMissing(QueueyError):
    """PySpark is not installed, or there is no Java that it runs on."""

    code = "SparkMissing"
