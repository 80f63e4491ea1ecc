"""Who may join: certificates and their bundles; and what must not be told."""
