"""Using trained models: loading them, reading files and modules, pictures, sharing."""
