"""Jobs of both clients on scripted servers."""
