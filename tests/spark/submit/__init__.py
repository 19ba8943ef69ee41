"""Programs that are submitted to a cluster of Spark, as the page about clusters says."""
