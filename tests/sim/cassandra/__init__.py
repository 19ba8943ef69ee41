"""The Cassandra store in simulated time: its threads, the cluster, and storms over both."""
