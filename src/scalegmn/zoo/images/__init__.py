"""Image collections: where their files are, how they are read and downloaded."""
