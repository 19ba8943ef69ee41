"""The claim log of a partition at work: requests to it, entries, searches, and what follows an entry.

A :class:`~.partition_log.PartitionLog` is one partition's log. It answers requests (:mod:`.log_requests`) in rounds: it
finds messages (:mod:`.message_finder`), lets the rules decide, appends an entry, and does the work that the entry
leaves (:mod:`.follow_ups`). :mod:`.move_turns` and :mod:`.expiry_turns` are requests of moves and of expiry.

:mod:`.claim_search` holds the logs of a process, asks several of them, and is a claim's way from partition to
partition. :mod:`.wakeups` wakes claims that wait, and :mod:`.forwarding` sends requests to the worker of the service at
which those of all workers share entries.
"""
