"""Tasks: Python functions that workers call, with arguments sent in messages.

The message of a call is the JSON object ``{"task": "thumb", "args": ["a.jpg"], "kwargs": {}}``. Workers claim these
messages (:mod:`qdo.worker.claim_source`) and call the function of that name.
"""

from __future__ import annotations

from qdo.tasks.definitions import TaskOptions
from qdo.tasks.jobs import Jobs
from qdo.tasks.queues import JobQueueOptions
from qdo.tasks.tasks import Task, TaskCall, TaskSender

__all__ = ["JobQueueOptions", "Jobs", "Task", "TaskCall", "TaskOptions", "TaskSender"]
