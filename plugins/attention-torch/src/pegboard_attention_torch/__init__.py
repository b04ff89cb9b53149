"""Paged attention in plain torch for Pegboard."""
