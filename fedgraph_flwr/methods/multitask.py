"""Several labels per molecule: what the methods that learn relations of tasks tell."""

# Evaluation record of methods that learn how tasks relate: Omega and its tasks
RECORD, RECORD_IDS = "task-covariance", "task-ids"
