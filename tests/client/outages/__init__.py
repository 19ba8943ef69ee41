"""A fake service that fails in every way, for both clients."""
