"""Questions that take many runs to answer: published experiments run again, methods side by side."""
