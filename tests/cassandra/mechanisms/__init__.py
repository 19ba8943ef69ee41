"""What happens without each of the mechanisms."""
