"""The methods that ScaleGMN is compared with, one file for each."""
