"""Attachments to real trainers: one folder or file per trainer, loaded inside it."""
