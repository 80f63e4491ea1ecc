"""One file per command of `rlvf`."""
