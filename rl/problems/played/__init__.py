"""Problems that the built-in environments are played on, made in code: one file a set, of its environment's name."""
