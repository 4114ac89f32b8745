"""The theorem of the paper as a program: a ScaleGMN that runs the network it reads."""
