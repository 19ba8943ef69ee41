"""The claim log of a partition at work: requests to it, entries, searches, and what follows an entry."""
