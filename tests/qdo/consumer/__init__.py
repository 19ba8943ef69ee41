"""The consumer on a real service and a simulated ZooKeeper."""
