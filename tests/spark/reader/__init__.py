"""A stream's reader on its own, without Spark."""
