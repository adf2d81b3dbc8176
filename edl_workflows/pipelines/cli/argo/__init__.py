"""``edl argo``."""
