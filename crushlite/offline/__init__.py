"""An agent without a model, for wings: it answers where none is configured, or none is wanted."""
