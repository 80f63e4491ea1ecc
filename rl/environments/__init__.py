"""Environments: programs that a policy acts on over several turns, by tools or by text."""
