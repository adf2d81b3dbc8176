"""Extra links on Airflow's task pages."""
