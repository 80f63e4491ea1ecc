"""What runs, in the order of the algorithm."""
