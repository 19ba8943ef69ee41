"""Implements the contracts of the store; each contract is an object made of some parts of :mod:`.connected`."""
