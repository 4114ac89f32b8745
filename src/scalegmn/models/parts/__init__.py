"""Parts that several peers share."""
