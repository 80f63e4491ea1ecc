"""The Dask cluster: its processes, where calls run, and what its scheduler knows."""
