"""Commands on a user's networks."""
