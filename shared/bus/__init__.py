"""NATS behind a port: the only package that imports nats-py."""
