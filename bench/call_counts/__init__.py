"""``make measure``: the files and calls of Queuey and Qdo that one operation crosses, and the lines of code.

A call is each entry or resumption of a Python function of ``queuey`` or ``qdo``, in any thread of the process that does
the work, as ``sys.setprofile`` reports it; files are those of these functions. An operation is warm, and of five runs
the one with the fewest files counts.

* POST, GET, claim: one message as text, a page of 100, and one message with the acknowledgement of the one before it,
  over an open connection to ``queuey serve`` on SQLite: one worker, one partition, no console and no facade.
* SQS receive, console page: one message, and the page of a queue, with the facade or the console turned on.
* fetch to commit: a worker of a group of the service gets a message, handles it and commits; and a worker of a group
  in ZooKeeper, on the simulated tree of the tests.
* Cassandra append, Cassandra read: of the store alone, one message, on the simulated driver of the tests.

``record.json`` has the figures that ``tests/bench/test_call_counts.py`` holds. Code lines are printed and not held.
"""
