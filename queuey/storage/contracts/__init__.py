"""The parts of the storage contract. :mod:`queuey.storage` has the rules that apply to all of them."""
