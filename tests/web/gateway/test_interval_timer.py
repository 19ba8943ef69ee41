"""Callbacks that one timer calls periodically."""

from __future__ import annotations

import asyncio
from collections import Counter

from queuey.web.gateway import asgi
from queuey.web.gateway.asgi import IntervalTimer
from tests.replacing import replace_in
from tests.waiting import until_async


def test_each_call_has_its_interval() -> None:
    """A function is called at once, and then at its interval, whatever others do, until the timer is stopped."""
    called: Counter[str] = Counter()
    errors: list[object] = []

    def fail() -> None:
        called["failing"] += 1
        if called["failing"] > 1:
            raise RuntimeError("a defect")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        timer = IntervalTimer(loop)
        timer.call_every(0.001, fail)
        timer.call_every(0.001, lambda: called.update(["often"]))
        timer.call_every(0.004, lambda: called.update(["seldom"]))
        assert called == {"failing": 1, "often": 1, "seldom": 1}
        await until_async(lambda: called["often"] > 40)
        timer.stop()
        await asyncio.sleep(0)
        assert called["seldom"] - 1 == (called["often"] - 1) // 4
        assert called["failing"] == called["often"] == len(errors) + 1
        ended = called.copy()
        await asyncio.sleep(0.02)
        assert called == ended

    with replace_in(asgi, asgi.TICK_INTERVAL, 0.001):
        asyncio.run(main())
