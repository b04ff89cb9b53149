"""Device code: copying keys and values out of pages, joining results."""
