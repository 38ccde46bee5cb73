"""Personalized federated learning on trees of machines."""
