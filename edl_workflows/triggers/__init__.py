"""Airflow triggers, which wait in the triggerer. They share one LIST+WATCH per cluster, namespace and
kind."""
