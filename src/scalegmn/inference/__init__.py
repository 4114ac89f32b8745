"""Trained models at work: loading them, reading what a person hands over, pictures, sharing."""
