"""Facades: services that speak the protocols of other systems, asked as their clients ask."""
