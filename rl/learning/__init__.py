"""Learning: from a batch to the next version of the policy."""
