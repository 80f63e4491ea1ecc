"""Untrusted code, run in processes that are confined and can be killed."""
