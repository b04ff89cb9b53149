"""The engine room: front end, engine core, and how they are put together."""
