"""Means and frequencies from randomized reports with personal budgets."""
