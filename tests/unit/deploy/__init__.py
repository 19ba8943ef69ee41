"""What starts servers on this machine."""
