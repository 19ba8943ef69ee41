"""Tests of ZooKeeper only: connections that break, leaders that die, credentials and encryption."""
