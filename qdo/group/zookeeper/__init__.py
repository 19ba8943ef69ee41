"""Groups whose members meet in ZooKeeper: a tree of nodes, and the connection that reads and writes it.

``coordinator`` and ``session`` keep a group in the tree of :mod:`.tree`. ``link``, ``requests`` and ``handler`` need
kazoo (the extra ``zookeeper``) and translate its errors and values: ``link`` is a session on the event loop,
``requests`` are what it sends, and ``handler`` makes kazoo use that loop.
"""
