"""The relevant message of Spark's errors."""

from __future__ import annotations

import logging

import pytest
from pyspark.logger import PySparkLogger

from queuey.model.errors import QueueNotFound
from queuey.spark.failures import SparkFailure, explain, silence_spark_loggers

OURS = """An error occurred while calling o45.load.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
Traceback (most recent call last):
  File "worker.py", line 3, in main
KeyError: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 9, in main
    process()
{raised}

\tat org.apache.spark.api.python.PythonRunner.handle(PythonRunner.scala:561)
Caused by: java.io.EOFException: the end
"""


def error(kind: str, text: str, module: str = "pyspark.errors.exceptions.captured") -> Exception:
    made: Exception = type(kind, (Exception,), {"__module__": module})(text)
    return made


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        ("queuey.spark.errors.OptionError: Unknown option x.", SparkFailure("Unknown option x.", usage=True)),
        (
            "queuey.model.errors.QueueChanged: queue orders was purged",
            SparkFailure("queue orders was purged", usage=False),
        ),
        ("queuey.model.errors.StoreClosed", SparkFailure("StoreClosed", usage=False)),
        ("ValueError: seven: eight", SparkFailure("ValueError: seven: eight", usage=False)),
    ],
)
def test_the_last_traceback_counts(raised: str, found: SparkFailure) -> None:
    """An error of a task or a data source is shown by its message: ours as it is, others with their class."""
    assert explain(error("PythonException", OURS.format(raised=raised))) == found


def test_errors_of_the_jvm() -> None:
    """A wrong query is shown by its first line, a failure by its innermost cause."""
    wrong = (
        "[UNRESOLVED_COLUMN] A column `colour` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project ['colour]"
    )
    text = explain(error("AnalysisException", wrong))
    assert text == SparkFailure(wrong.splitlines()[0].rstrip(";"), usage=True)
    failed = (
        "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job aborted\n"
        "\tat a.B\nCaused by: java.lang.IllegalStateException: one\nCaused by: java.net.ConnectException: refused\n"
    )
    assert explain(error("Py4JJavaError", failed, "py4j.protocol")) == SparkFailure("refused", usage=False)
    alone = "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job aborted\n\tat a.B\n"
    assert explain(error("Py4JJavaError", alone, "py4j.protocol")) == SparkFailure("Job aborted", usage=False)


def test_a_dead_jvm(caplog: pytest.LogCaptureFixture) -> None:
    """A dead JVM gives one line, whichever call notices it, and py4j logs nothing; other errors are left alone."""
    silence_spark_loggers()
    logging.getLogger("py4j.clientserver").error("Error while sending or receiving.")
    text = explain(error("Py4JNetworkError", "Answer from Java side is empty", "py4j.protocol"))
    assert text is not None
    assert "The Java process of Spark has ended" in text.text
    module = {"__name__": "py4j.clientserver"}
    exec("def send():\n    raise ConnectionRefusedError('refused')", module)
    with pytest.raises(ConnectionRefusedError) as caught:
        module["send"]()  # type: ignore[operator]
    assert explain(caught.value) == text
    assert [explain(other) for other in (ConnectionRefusedError("elsewhere"), QueueNotFound("orders"))] == [None, None]
    assert caplog.records == []


def test_what_pyspark_writes_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """Errors shown in one line are not logged with their stack traces as well."""
    silence_spark_loggers()
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).exception("a condition", errorClass="UNRESOLVED_COLUMN")
    assert capfd.readouterr() == ("", "")
