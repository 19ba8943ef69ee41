"""Waits for a condition end: with it, at their limit, or with the process that was to bring it about."""

from __future__ import annotations

import pytest

from tests.waiting import until, until_async


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_wait_has_a_limit(anyio_backend: str) -> None:
    """A condition that stays false fails at the limit; one that becomes true ends the wait; coroutines are awaited."""
    with pytest.raises(AssertionError, match=r"after 0\.02 s"):
        until(lambda: False, 0.02)
    with pytest.raises(AssertionError, match=r"after 0\.02 s"):
        await until_async(lambda: False, 0.02)
    answers = iter([False, False, True])

    async def answer() -> bool:
        return next(answers)

    await until_async(answer)
    assert list(answers) == []
