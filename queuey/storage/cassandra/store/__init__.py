"""The contracts of the store, each in a class, on readers, writers and the catalogue."""
