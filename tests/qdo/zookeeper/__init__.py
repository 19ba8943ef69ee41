"""What only coordination by ZooKeeper has: connections that break, leaders that die, credentials and encryption."""
