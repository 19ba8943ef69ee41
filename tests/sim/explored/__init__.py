"""Small worlds of which every history is explored: names, moves, and posts with keys."""
