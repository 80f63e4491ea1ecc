"""Verifiers judge completions: one file each, and the isolation of those that cannot be trusted."""
