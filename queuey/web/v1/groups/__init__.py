"""Views of consumer groups: their offsets in queues, and groups whose members the service manages."""
