# Source me: `. ./env.sh`. Activates the environment and sets the variables that
# Flower's background SuperLink must start with (it reads them only then).
FEDGRAPH_HOME="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)"
export FEDGRAPH_HOME
. "$FEDGRAPH_HOME/.venv/bin/activate"

# A SuperLink of this project's own: its runs see this code and these settings, and
# other Flower projects on this machine are left alone.
export FLWR_HOME="${FLWR_HOME:-$FEDGRAPH_HOME/.flwr}"
export FLWR_LOCAL_CONTROL_API_PORT="${FLWR_LOCAL_CONTROL_API_PORT:-39193}"
export FLWR_LOCAL_SUPERLINK_HTTP_API_PORT="${FLWR_LOCAL_SUPERLINK_HTTP_API_PORT:-39191}"

export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 # use this environment as it is
export FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_UPDATE_CHECK=1
export RAY_worker_niceness=0 # Ray actors otherwise run at nice 15
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
