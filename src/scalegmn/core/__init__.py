"""The nouns: groups, activations, architectures, networks, transforms and canonical forms."""
