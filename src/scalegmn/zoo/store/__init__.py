"""A zoo on disk: reading, writing, splitting, checking, combining, describing."""
