"""How the suite runs: which tests belong to which part, in which process, and that every run ends."""
