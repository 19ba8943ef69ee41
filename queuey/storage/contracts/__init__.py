"""The parts of the storage contract. :mod:`queuey.storage` has the rules that hold for all of them."""
