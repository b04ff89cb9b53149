"""GGUF checkpoints and their number formats for Pegboard."""
