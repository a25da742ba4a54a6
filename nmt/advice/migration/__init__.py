"""Recipes and hints for users of other toolkits."""
