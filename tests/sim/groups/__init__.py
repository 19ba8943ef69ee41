"""Groups of Qdo in simulated time: the code of real consumers over a tree and a service that are played."""
