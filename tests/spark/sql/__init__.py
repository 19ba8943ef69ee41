"""Tests of Spark SQL tables and views over queues, and of progress reports of streams."""
