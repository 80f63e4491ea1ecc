"""The machines, no learning in sight: cluster, resident objects, storage, tracking, services."""
