"""The facade of Amazon SQS, as programs of its clients use it."""
