"""Decisions of the ZooKeeper coordination, without a server."""
