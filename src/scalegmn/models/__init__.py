"""Metanetworks: ScaleGMN and its peers, under one interface."""
