"""The contracts of the store, each an object that is made of some of the parts in :mod:`.connected`."""
