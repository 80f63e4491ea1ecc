"""Prefect tasks, and what they share."""
