"""The nouns that all rooms share, and the pure rules on them."""
