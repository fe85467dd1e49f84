# Sourced by the scripts that make virtual environments, with the one in question named by $venv.
# uv resolves in seconds what pip resolves in minutes, unpacks a package once for all environments, and links it into
# each. It asks the index that pip is told of; what pip finds elsewhere (torch built for CPUs), pip installs.
install_uv() { # with it whatever else pip has to install
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv "$@"
    if [ -z "${UV_DEFAULT_INDEX:-}" ]; then
        UV_DEFAULT_INDEX=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
        [ -z "$UV_DEFAULT_INDEX" ] && unset UV_DEFAULT_INDEX || export UV_DEFAULT_INDEX
    fi
}
# Whom pip trusts: the authorities of the machine, among them those of a company's proxy.
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
install() { "$venv/bin/python" -m uv pip install --quiet --python "$venv/bin/python" "$@"; }
# kvcast as it lies here, and what tests of engines need.
install_kvcast() {
    install --editable p4switch --editable client --editable kvproto --editable . --editable lab \
        'pytest>=8.0' 'hypothesis>=6.100' "$@"
}
