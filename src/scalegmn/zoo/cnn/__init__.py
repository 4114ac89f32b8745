"""Small image classifiers: hyperparameters, training, and zoos of them."""
