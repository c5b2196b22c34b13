"""Small plug-ins to start from: ``method="examples.placebo:METHOD"``."""
