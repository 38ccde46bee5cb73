"""The command line; heavy libraries are imported by the commands that need them, so that help comes at once."""
