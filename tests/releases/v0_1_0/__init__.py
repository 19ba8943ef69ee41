"""The record of version 0.1.0; nothing here changes any more."""
