"""The Llama model family for Pegboard."""
