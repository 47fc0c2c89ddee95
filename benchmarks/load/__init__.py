"""The load client: C for the load, Python to build it, run it and read its report."""
