"""The verifiers that are there, one a file: each has its name from the file, and says in `VERIFIER` what it is."""
