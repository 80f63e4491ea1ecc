"""What says whether a completion is right: one file per verifier, and what runs the ones that cannot be trusted."""
