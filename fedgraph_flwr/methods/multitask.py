"""Names of the records in which clients send how their tasks relate."""

# Evaluation record of methods that learn how tasks relate: Omega and its tasks
RECORD, RECORD_IDS = "task-covariance", "task-ids"
