"""A load with faults in it, and a checker that knows nothing of the product."""
