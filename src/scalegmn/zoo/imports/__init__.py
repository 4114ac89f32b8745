"""Published collections of networks and the user's own, converted to zoos."""
