"""The contract of a group, held by members that meet at a tree."""
