"""The command line and YAML files, read into configurations."""
