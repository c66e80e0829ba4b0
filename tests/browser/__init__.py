"""Notebooks in a real browser: one JupyterLab, one Chromium and one page for all files."""
