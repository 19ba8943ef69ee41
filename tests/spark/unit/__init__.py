"""Parts of the Spark room that need neither Spark nor a store."""
