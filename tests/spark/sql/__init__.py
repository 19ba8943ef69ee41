"""Tables and views of Spark SQL over queues, and what streams report of their progress."""
