"""Workers whose handlers kill, raise, hang and swallow errors, and a supervisor that restarts them."""
