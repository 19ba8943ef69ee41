"""Settings of the servers' logs: one file, with only the warnings of some talkative loggers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

SETTINGS = """<configuration>
  <appender name="FILE" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%-5level [%thread] %date{{ISO8601}} %logger{{0}} - %msg%n</pattern></encoder>
  </appender>
{quiet}
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""
SILENCE = '<configuration><root level="OFF"/></configuration>\n'


def render(log: Path, quiet: Iterable[str]) -> str:
    """Returns the settings of logback.

    Args:
        log: The file to append to.
        quiet: The loggers that only log warnings.
    """
    lines = (f'  <logger name={quoteattr(name)} level="WARN"/>' for name in quiet)
    return SETTINGS.format(log=escape(str(log)), quiet="\n".join(lines))
