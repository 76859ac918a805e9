"""Archives: `members` finds the images, and `references` labels them as in a folder or a table."""
