"""Commands that train, measure and report."""
