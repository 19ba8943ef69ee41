"""The facade of Amazon SQS in process: signatures, both protocols, limits and errors."""
