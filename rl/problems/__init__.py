"""Problems: made in code, or found in files."""
