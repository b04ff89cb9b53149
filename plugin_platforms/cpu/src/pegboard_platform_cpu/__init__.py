"""The CPU platform for Pegboard."""
