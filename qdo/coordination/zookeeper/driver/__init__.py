"""ZooKeeper sessions on an event loop. The only package that imports kazoo; it translates kazoo's errors and values."""
