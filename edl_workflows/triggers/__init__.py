"""Airflow triggers: waiting in the triggerer, all on one LIST+WATCH per cluster, namespace and kind."""
