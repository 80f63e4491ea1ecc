"""One file per Prefect task."""
