"""The investigation: how vLLM verifies draft tokens, and what a correct verification of a tree needs."""
