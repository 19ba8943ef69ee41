"""Workers whose handlers kill, raise, hang and swallow, and a supervisor that starts them again."""
