"""Real processes for the tests: Cassandra and ZooKeeper servers, ``queuey serve``, commands."""
