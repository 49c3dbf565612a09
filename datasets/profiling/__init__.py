"""Campaigns: many programs, their candidates compiled and measured, and what came of it as a data set."""
