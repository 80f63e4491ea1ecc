"""Sampling: completions of a policy, with the log-prob of every token."""
