"""Bounds for files that may come from a stranger; each is checked where its file enters."""

# Links to folders that one listing follows; few links could otherwise make millions of paths.
MAX_FOLLOWED_LINKS = 100_000
