"""The distributions for users, and the instructions to install them."""
