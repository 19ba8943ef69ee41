"""Archives and replays."""
