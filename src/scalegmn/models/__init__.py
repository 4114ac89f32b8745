"""Metanetworks: ScaleGMN and its peers, each a trunk, and the heads that all of them share."""
