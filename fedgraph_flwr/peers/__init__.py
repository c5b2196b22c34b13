"""Networks of clients that talk to each other: who to whom, and with which weights."""
