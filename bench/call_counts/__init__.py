"""The files and calls of Queuey and Qdo that one operation crosses: ``make measure``."""
