# Sourced by tools/run and tools/check, which set `root`, the checkout. Plain POSIX sh, and only
# file tests when all is in place: a second start must not be felt. What takes time, and must not
# happen twice at once, is in environment.py.

venv=$root/.venv
# What an installation depends on. The checkout's path is part of it, because the scripts in an
# environment hold absolute paths: a checkout that was moved or copied is installed again.
stamp="$(cksum <"$root/pyproject.toml") $root"

# A foreign home would lead the private environment astray. (PYTHONPATH is left alone: people have
# agents of their own on it.)
unset PYTHONHOME

# ready KIND: is the installation of this kind (run or dev) there and up to date?
ready() {
    # -x follows links: it is false once the Python behind the environment is gone.
    [ -x "$venv/bin/python" ] && [ -x "$venv/bin/crushlite" ] || return 1
    [ -f "$venv/crushlite-$1.stamp" ] || return 1
    [ "$(cat "$venv/crushlite-$1.stamp")" = "$stamp" ]
}

# set_up KIND: make it so, or say why not.
set_up() {
    find_python
    "$python" -I "$root/tools/environment.py" "$root" "$1" "$stamp" || exit $?
}

# Sets `python`. One that cannot make environments is passed over for one that can.
find_python() {
    python='' bare=''
    for candidate in python3.13 python3.12 python3.11 python3; do
        "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1 || continue
        if "$candidate" -I -c 'import ensurepip, venv' >/dev/null 2>&1; then
            python=$candidate
            return
        fi
        bare=${bare:-$candidate}
    done
    if [ -n "$bare" ]; then
        cat >&2 <<EOF
crushlite: $bare is new enough, but cannot make a virtual environment: its module "ensurepip"
is missing. On Debian and Ubuntu it is a package of its own:

    sudo apt install python3-venv

Then run this again.
EOF
    else
        cat >&2 <<EOF
crushlite: Python 3.11 or newer is needed. python3.13, python3.12, python3.11 and python3 were
looked for on your PATH; found: $(python3 --version 2>/dev/null || echo none).
EOF
    fi
    exit 1
}
