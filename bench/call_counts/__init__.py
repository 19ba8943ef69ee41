"""``make measure``: counts the files and calls of Queuey and Qdo that one operation crosses, and the lines of code.

A call is each entry or resumption of a Python function of ``queuey`` or ``qdo``, as ``sys.setprofile`` reports it, in
any thread of the process that runs the operation. The files are those of these functions. Each operation is warmed up,
and of five runs the one with the fewest files counts.

* POST, GET, claim: one message as text, a page of 100, and one message with the acknowledgement of the previous one,
  over an open connection to ``queuey serve`` on SQLite: one worker, one partition, no console and no facade.
* SQS receive, console page: one message, and the page of a queue, with the facade or the console turned on.
* fetch to commit: a worker fetches, handles and commits one message; in a group of the service, and in a group of
  ZooKeeper on the tests' simulated tree.
* Cassandra append, Cassandra read: one message, by the store alone, on the tests' simulated driver.

``record.json`` has the maxima that ``tests/bench/test_call_counts.py`` checks. Code lines are only printed.
"""
