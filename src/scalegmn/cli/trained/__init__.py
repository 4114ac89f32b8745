"""Commands on trained models."""
