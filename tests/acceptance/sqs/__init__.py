"""The facade of Amazon SQS, as its clients' programs use it."""
