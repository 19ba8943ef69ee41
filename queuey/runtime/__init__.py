"""What every use case runs on: the event loop, clocks, threads, waiting requests, other workers, counters.

Use cases are coroutines of one :mod:`.event_loop`. :mod:`.waiters` lets requests wait without a thread each,
:mod:`.workers` asks the other processes of the service, and :mod:`.arrival_news` notifies them of new messages.
:mod:`.due_work` continues what must outlive a process. :mod:`.limits`, :mod:`.metrics` and :mod:`.logs` are for all.
"""
