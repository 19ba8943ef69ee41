"""Acts of operators in many simulated histories."""
