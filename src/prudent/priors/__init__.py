"""Priors: their densities, safe at any theta, their checks, families of them, and files."""
