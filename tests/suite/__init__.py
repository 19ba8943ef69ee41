"""How the suite runs: its parts, its distribution over processes, and the guarantee that every run ends."""
