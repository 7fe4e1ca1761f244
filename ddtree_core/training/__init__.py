"""Drafters and small targets of our own: corpus, training, validation."""
