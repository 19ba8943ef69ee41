"""Commands that people use every day: messages, the profile, help and completion."""
