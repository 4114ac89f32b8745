"""Building blocks: nets that are invariant or equivariant to scalings, and the message passing made of them.

Here, a state *moves as q* if it is permuted with the neurons and multiplied by q when they are scaled by q.
"""
