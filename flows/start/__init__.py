"""A request before anything runs: what it asks for, what is wrong with it, and the run on storage that it begins."""
