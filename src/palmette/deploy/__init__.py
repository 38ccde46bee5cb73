"""Deployment: a federation on real machines, each node a process that knows only its parent and its children.

`certificates` makes the identities. `below` and `above` are the transport: a parent's end and a child's end of a link, over
gRPC with mutual TLS. Both need ``pip install 'palmette[deploy]'``.
"""
