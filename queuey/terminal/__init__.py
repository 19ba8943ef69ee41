"""What command lines print, ask and read."""
