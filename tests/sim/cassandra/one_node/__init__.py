"""The Cassandra store on one simulated node, in real threads: a backend of the contract suite."""
