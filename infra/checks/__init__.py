"""Whether this machine is fit for its part, one line a check."""
