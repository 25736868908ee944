"""A secured NATS for Tokenbus: who may do what, keys and certificates, configuration files, a three-node cluster."""
