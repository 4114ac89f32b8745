"""Modules (torch.fx), state dicts and files to architectures with parameters, and back."""
