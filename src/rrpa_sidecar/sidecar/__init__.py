"""The daemon: everything put together."""
