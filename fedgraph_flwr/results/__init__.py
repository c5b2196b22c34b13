"""A run's results folder: written as the run goes, read by commands and figures."""
