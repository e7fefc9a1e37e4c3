"""Runs of any trainer as tables: the one input of replay."""
