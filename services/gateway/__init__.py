"""HTTP face of the pipeline: OpenAI endpoints in front, NATS behind."""
