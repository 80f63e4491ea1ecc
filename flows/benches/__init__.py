"""What `rlvf bench` measures."""
