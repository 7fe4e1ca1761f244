"""Runs on disk: folders, their schema, and where a number comes from."""
