"""Image collections: where their files lie, how they are read and downloaded."""
