"""Dead letters: listed, classified by error, and redriven."""
