"""Tracing a module: the values that flow through it, and the architecture that is built from them."""
