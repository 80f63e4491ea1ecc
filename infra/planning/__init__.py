"""Which calls of a step should run where, and what would make it shorter: costs, simulated."""
