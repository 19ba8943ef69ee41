"""Programs submitted to a Spark cluster, as the page about clusters says."""
