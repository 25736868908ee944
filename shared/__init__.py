"""What services have in common: messages, the log and its fold, the bus, the model repository."""
