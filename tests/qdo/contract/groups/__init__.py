"""The contract of a group, for members that meet at a tree."""
