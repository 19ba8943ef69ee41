"""Parts of the consumer by themselves."""
