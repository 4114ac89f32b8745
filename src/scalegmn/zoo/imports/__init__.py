"""Public and personal collections of networks, converted to zoos."""
