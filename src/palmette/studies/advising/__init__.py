"""The study behind the advice: populations of many kinds, classic families of methods, and a full search on held-out data."""
