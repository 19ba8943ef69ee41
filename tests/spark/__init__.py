"""Tests of Spark: queues as a source and a sink, and the jobs of the pipeline."""
