"""The policy: a causal language model, what goes in and what comes out."""
