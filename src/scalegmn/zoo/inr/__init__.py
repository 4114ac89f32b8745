"""Implicit neural representations: conventions, fitting, and zoos of them."""
