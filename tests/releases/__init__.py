"""Compatibility of releases: their stores open, and their clients and services work with those of later ones.

``python -m tests.releases`` writes the folder of the present version; the tests read the folders of all versions.
"""
