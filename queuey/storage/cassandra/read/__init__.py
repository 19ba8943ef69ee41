"""Reads messages: slices of partitions, and whole ranges as Arrow columns.

:mod:`.slice_reads` reads slices bucket by bucket; :mod:`.bucket_index` has the buckets that may hold messages.
:mod:`.watched_arrivals` wakes waiting readers: it polls, led by the partitions that :mod:`.recent_writes` names.
:mod:`.arrow_scan` reads whole ranges.
"""
