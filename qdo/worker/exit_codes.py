"""How a worker's process ends, for its supervisor. 2 is left to the command line: wrong usage."""

from __future__ import annotations

ENDED = 0
"""As asked: by a signal, by ``stop()`` or by ``StopWorker``; all messages in flight were finished and recorded."""
FAILED = 1
"""By an unhandled error, by a second signal, or because the service or the coordination refuses for good."""
MESSAGE_FAILED = 3
"""A message failed at last and the settings say to stop then; it is not marked as handled."""
UNFINISHED = 4
"""As asked, but handlers did not return, or progress was not recorded, in time; messages will be handled again."""
