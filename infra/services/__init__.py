"""The services beside the Dask cluster, and how they are kept alive: Prefect, MLflow and the rest of `rlvf up`."""
