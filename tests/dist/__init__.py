"""What is built for users, and how they are told to install it."""
