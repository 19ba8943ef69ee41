"""What coordination by ZooKeeper decides without a server."""
