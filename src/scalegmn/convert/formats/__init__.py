"""File formats and graphs of other programs."""
