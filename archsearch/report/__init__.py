"""Pages: tables, plots and text as one HTML file that needs no network. Knows nothing of rules or studies.

Enters: plain numbers and words. Leaves: HTML with its style and drawings inside, and tables as CSV and JSON.
"""
