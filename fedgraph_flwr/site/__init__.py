"""Commands for the operator of a site: ``python -m fedgraph_flwr.site COMMAND``."""
