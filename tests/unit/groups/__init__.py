"""What is decided on consumer groups."""
