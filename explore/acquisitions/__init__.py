"""Which points of a pool to label next; one file a rule."""
