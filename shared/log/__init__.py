"""The log: records folded in order into the one state that all services share."""
