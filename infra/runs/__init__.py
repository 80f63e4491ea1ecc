"""What a run leaves: checkpoints, completions, metrics."""
