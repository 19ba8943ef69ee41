"""Output, questions and values of settings, the same for both command lines."""
