"""Compatibility of versions: their stores open, and their clients and services work with those of later ones.

``python -m tests.releases`` writes the folder of the present version; the tests read the folders of all versions. Until
a version is released, its record belongs to the commit that wrote it last: a change of a format writes it anew in the
same commit. Afterwards the record never changes.
"""
