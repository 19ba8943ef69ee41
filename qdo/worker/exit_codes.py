"""How a worker's process ends, for its supervisor. 2 is left to the command line: wrong usage."""

from __future__ import annotations

ENDED = 0
"""Code after a signal, ``stop()`` or ``StopWorker``; all messages in flight were finished and recorded."""
FAILED = 1
"""Code after an unhandled error, a second signal, or a refusal for good by the service or the coordination."""
MESSAGE_FAILED = 3
"""Code when a message failed at last and the settings say to stop then; it is not marked as handled."""
UNFINISHED = 4
"""Code after a stop when handlers or commits did not end in time; messages will be handled again."""
