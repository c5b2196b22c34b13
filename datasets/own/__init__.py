"""A user's own data: tables, schema, molecules."""
