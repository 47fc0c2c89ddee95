"""Benchmarks of the product and of what else does its job."""
