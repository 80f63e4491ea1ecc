"""Folders and files wherever they lie: on this machine or at any URI that fsspec knows."""
