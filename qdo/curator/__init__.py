"""The queues of Apache Curator in ZooKeeper, from Python."""
