"""Groups of Qdo in simulated time: the code of real consumers over a simulated tree and service."""
