"""Cells of tables as numbers: schema, columns, rows."""
