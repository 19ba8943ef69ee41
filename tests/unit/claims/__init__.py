"""What is decided on claims."""
