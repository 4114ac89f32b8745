"""The basic objects: groups, activations, architectures, networks, transforms and canonical forms."""
