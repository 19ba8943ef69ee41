"""The checks of a soak run, by themselves."""
