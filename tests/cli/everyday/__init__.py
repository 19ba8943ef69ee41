"""Commands of everyday use: messages, the profile, help and completion."""
