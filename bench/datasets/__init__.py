"""Where prompts and lengths come from; each module is one kind of dataset."""
