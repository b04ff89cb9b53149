"""Conformance kit for Pegboard plugins, as a pytest plugin."""
