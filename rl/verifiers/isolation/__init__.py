"""Code that cannot be trusted to end, or to keep its hands to itself, in processes that can be killed."""
