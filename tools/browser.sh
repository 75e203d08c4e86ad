# Sourced by tools/check: the real browser that the tests of the web console drive. Plain POSIX sh.

# has_browser: are chromium and its driver there?
has_browser() {
    command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1
}

# browser_advice: what a developer can do about it.
browser_advice() {
    echo 'chromium and chromedriver are not on the PATH (Debian: sudo apt-get install chromium chromium-driver)'
}

# install_browser: install both, as root or with sudo, or say why not.
install_browser() {
    as_root=''
    if [ "$(id -u)" -ne 0 ]; then
        as_root='sudo -n'
    fi
    if command -v apt-get >/dev/null 2>&1; then
        # One attempt may meet a mirror that is being updated.
        for attempt in 1 2 3; do
            echo "apt-get, attempt $attempt"
            $as_root apt-get -qq update &&
                $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
                    --no-install-recommends install chromium chromium-driver fonts-dejavu-core \
                    >/dev/null &&
                break
        done
    fi
    if ! has_browser; then
        echo "the browser tests cannot run: $(browser_advice)" >&2
        return 1
    fi
}
