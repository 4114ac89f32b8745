"""Building blocks: nets that are invariant or equivariant to scalings, and the message passing made of them."""
