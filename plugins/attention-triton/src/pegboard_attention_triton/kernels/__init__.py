"""Device code: what runs in one program, and how its work is cut."""
