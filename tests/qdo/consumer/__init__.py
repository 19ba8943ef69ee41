"""The consumer on a real service and real local coordination."""
