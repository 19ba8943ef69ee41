"""Jobs of both clients, against scripted servers."""
