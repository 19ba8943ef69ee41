"""Use cases of operators at the console: the audit log, sending dead letters back, and keys with fewer rights."""
