"""An engine that answers with a given text at a given pace: the source of tests and loads."""
