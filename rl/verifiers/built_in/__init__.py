"""The built-in verifiers, one a file, which gives it its name; `VERIFIER` in it declares what it is."""
