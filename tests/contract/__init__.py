"""One suite per contract, run unchanged on every store that implements it."""
