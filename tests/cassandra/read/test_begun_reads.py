"""What the thread that receives answers may send."""

from __future__ import annotations

import threading

from queuey.ids import FIRST
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.driver import Request, Statement
from tests.cassandra.interposed import PATIENCE
from tests.cassandra.scene import Scene


def test_the_drivers_own_thread_never_waits_for_itself(scene: Scene) -> None:
    """A statement that was not prepared is refused there: the answer to preparing it could not be received."""
    process = scene.start()
    ended: list[BaseException | None] = []
    unknown = Statement("SELECT qid FROM bucket_index WHERE qid = ? AND partition = ? AND width_index = 99")
    done = threading.Event()

    def ask(_: object, __: object) -> None:
        def told(_rows: object, error: BaseException | None) -> None:
            ended.append(error)
            done.set()

        process.store._driver.send(Request(unknown, (1, 1)), told)

    values = (1, 1, 1, *[message_codec.uuid_of(FIRST)] * 2)
    process.store._driver.send(Request(message_codec.COUNT[0], values), ask)
    assert done.wait(PATIENCE)
    assert [str(error) for error in ended] == [
        "a statement that was not prepared cannot be asked from the driver's own thread"
    ]
