"""Results for machines and for people."""
