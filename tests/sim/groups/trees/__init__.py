"""Groups in a simulated tree, as in ZooKeeper."""
