"""Commands for the operator of a site: ``fedgraph site COMMAND``."""
