"""Compiled code: C++ sources, how they are built and loaded, and the operators that use them."""
