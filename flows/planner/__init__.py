"""What a run's calls cost, and where they should run."""
