"""The contracts of the store, each in a class on top of :class:`.connected.ConnectedStore`."""
