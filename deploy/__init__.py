"""The node: command line and supervision of the services on one machine."""
