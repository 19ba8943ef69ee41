"""What each call sends and how its answer is read, without input and output."""
