"""Workers that are killed, or end themselves."""
