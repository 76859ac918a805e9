"""Writes the page that shows a dataset to people, for `imageshards report`."""
