"""Workers whose keys may do less than their options ask for, or are refused while they run."""
