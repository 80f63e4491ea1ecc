"""Slow, long and lossy links between network namespaces of one computer."""
