"""Networks of clients: who talks to whom, and how neighbours' models are weighed."""
