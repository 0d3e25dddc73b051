"""Figures, tables and the HTML report, made from the store alone."""
