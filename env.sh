# Source me: `. ./env.sh`. Activates the environment and sets the variables that
# Flower's background SuperLink must start with (it reads them only then).
_home="$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd -P)" # dash knows no arrays
_has='import importlib.metadata as m; m.version("torch_geometric")
exit([int(n) for n in m.version("flwr").split(".")[:2]] < [1, 42])'
if [ -f "$_home/.venv/bin/activate" ]; then
    . "$_home/.venv/bin/activate"
    if ! [ "$VIRTUAL_ENV" -ef "$_home/.venv" ]; then # it has its path in it
        echo "error: $_home/.venv was installed as $VIRTUAL_ENV, and does not work" \
            "elsewhere: \`make clean\` removes it, then \`make run\` installs another" >&2
        deactivate
        return 1
    fi
elif ! python -c "$_has" 2>/dev/null; then # no conda, venv or image to be used either
    echo "error: nothing is installed in $_home/.venv: run \`make run\` or" \
        "\`make test\` first; or activate an environment of your own, and in it run" \
        "\`pip install -c constraints.txt -e .\`" >&2
    return 1
fi
unset _has

# A SuperLink of this folder's own: its runs see this code and these settings, and
# other Flower projects and other clones on this machine are left alone. The port, not
# the home, selects the SuperLink, hence ports made from the folder's name.
if [ "${FEDGRAPH_HOME:-}" != "$_home" ] && [ "${FLWR_HOME:-}" = "${FEDGRAPH_HOME:-}/.flwr" ]; then
    # This shell was another clone's: its SuperLink has that one's code and results.
    unset FLWR_HOME FLWR_LOCAL_CONTROL_API_PORT FLWR_LOCAL_SUPERLINK_HTTP_API_PORT
fi
export FEDGRAPH_HOME="$_home"
unset _home
export FLWR_HOME="${FLWR_HOME:-$FEDGRAPH_HOME/.flwr}"
_port=$((20000 + 2 * ($(printf %s "$FEDGRAPH_HOME" | cksum | cut -d' ' -f1) % 5000)))
export FLWR_LOCAL_CONTROL_API_PORT="${FLWR_LOCAL_CONTROL_API_PORT:-$_port}"
export FLWR_LOCAL_SUPERLINK_HTTP_API_PORT="${FLWR_LOCAL_SUPERLINK_HTTP_API_PORT:-$((_port + 1))}"
unset _port
# What runs on this machine is not reached through a proxy that downloads go through.
_direct="${no_proxy:-${NO_PROXY:-}}"
case ",$_direct," in *,127.0.0.1,*) ;; *) _direct="$_direct${_direct:+,}127.0.0.1,localhost" ;; esac
export no_proxy="$_direct" NO_PROXY="$_direct"
unset _direct

export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 # use this environment as it is
export FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_UPDATE_CHECK=1
export RAY_worker_niceness=0 # Ray actors otherwise run at nice 15
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
