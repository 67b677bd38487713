"""Accounts and roles in a Google Cloud project."""
