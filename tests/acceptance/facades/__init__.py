"""Facades: services that speak the protocols of other systems, called by their clients."""
