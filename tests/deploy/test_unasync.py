"""The script that writes the sync client from the async one."""

from __future__ import annotations

import pytest

from deploy import unasync

EXAMPLE = '''
    """Shows it.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         async for one in client.queues():
        ...             print(one)
        ...     print("end")
        >>> asyncio.run(main())
        end
    """
'''

SHOWN = '''
    """Shows it.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     for one in client.queues():
        ...         print(one)
        >>> print("end")
        end
    """
'''


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("async def f() -> AsyncIterator[int]:\n    yield await g()\n", "def f() -> Iterator[int]:\n    yield g()\n"),
        ("x: AsyncGenerator[AsyncJob, None]\n", "x: Generator[Job, None, None]\n"),
        ("from queuey.client._async.job import AsyncJob\n", "from queuey.client._sync.job import Job\n"),
        (EXAMPLE, SHOWN),
    ],
)
def test_what_becomes_of_async_code(source: str, result: str) -> None:
    """Code loses its awaits, and an example its main function."""
    assert unasync.make_sync_text(source) == result


def test_parts_for_async_code_alone() -> None:
    """What lies between two comments has no twin."""
    source = "class A:\n    # async only: why\n\n    async def f(self) -> None: ...\n\n    # both again\n\n    x = 1\n"
    assert unasync.make_sync_text(source) == "class A:\n    x = 1\n"


def test_each_result_names_its_source() -> None:
    """A reader of a generated module sees where to change it; none says that it is its own source."""
    for path, text in unasync.make_results().items():
        note, _, rest = text.partition("\n")
        assert note == f"# Do not edit: {unasync.COMMAND} writes this file from queuey/client/_async/{path.name}."
        assert "_sync`" not in rest
