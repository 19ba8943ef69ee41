"""The servers of a run."""
