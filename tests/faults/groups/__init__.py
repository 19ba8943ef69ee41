"""Groups of the service while data centres are cut off from each other."""
