"""What a release promises to the next ones: its stores open, its clients and services work with those of later ones.

``python -m tests.releases`` writes the folder of the present version; the tests read the folders of all versions.
"""
