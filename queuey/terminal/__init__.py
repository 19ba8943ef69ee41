"""Output, options, prompts and setting values, shared by both command lines."""
