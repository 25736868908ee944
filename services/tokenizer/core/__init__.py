"""Pure decisions of the service: values in, values out."""
