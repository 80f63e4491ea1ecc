"""What runs beside the Dask cluster, and how it is kept alive: Prefect, MLflow and the rest of `rlvf up`."""
