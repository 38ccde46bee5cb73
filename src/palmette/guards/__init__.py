"""What keeps the names and files of others from doing harm: on a terminal, and in memory.

It is the ground of the package and knows nothing of it. What cannot be accepted is a `ValueError`, which callers turn into a
sentence with the file's name.
"""
