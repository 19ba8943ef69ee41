"""Groups of the real service, over a simulated store and network."""
