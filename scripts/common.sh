# Sourced by the scripts beside it: where things lie, and how the Debian packages get here.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${MILLRACE_JOBS:-$(nproc)}

build_packages=(build-essential cmake ninja-build pkg-config ccache mold
  libboost-dev libzmq3-dev nlohmann-json3-dev libfmt-dev libspdlog-dev libcli11-dev libpcre2-dev libutf8proc-dev libssl-dev libcurl4-openssl-dev ca-certificates prometheus-cpp-dev
  libxxhash-dev libyaml-cpp-dev libucx-dev libjpeg62-turbo-dev libpng-dev libwebp-dev
  libsndfile1-dev libmpg123-dev libvorbis-dev libopusfile-dev libsoxr-dev libseccomp-dev libsqlite3-dev)
test_packages=(libgtest-dev python3 python3-pytest python3-zmq python3-msgpack iproute2)
# The page of tests/e2e/test_web.py in Chromium: 120 MB to download, so only continuous integration installs it. Without it that test is
# skipped; the page's modules are tested in node all the same.
browser_packages=(chromium fonts-dejavu-core)
# Videos: without ffmpeg their requests get a 400, and their tests are skipped.
video_packages=(ffmpeg)
# tests/e2e/test_discovery.py; without it that test is skipped.
discovery_packages=(etcd-server)
bench_packages=(libbenchmark-dev valgrind)
check_packages=(clang-format python3)
fuzz_packages=(clang libclang-rt-14-dev)

# install_packages NAME...: installs what is missing, and says so only then.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  echo "Installing ${missing[*]}" >&2
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get -qq -o DPkg::Lock::Timeout=600 update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=600 \
    install --no-install-recommends "${missing[@]}" >/dev/null
}

# The npm packages of FOLDER, exactly as its lock file says. node comes from Debian where the machine has none.
install_npm() {
  command -v node >/dev/null || install_packages nodejs npm
  (cd "$1" && { [ -d node_modules ] && [ node_modules -nt package-lock.json ] || npm ci --silent --no-progress; } && touch node_modules)
}

# configure PRESET OPTION...: the build folder of a preset of CMakePresets.json; quiet unless it fails.
configure() {
  local preset=$1 log
  shift
  log=$(mktemp)
  if ! (cd "$root" && cmake --preset "$preset" "$@") >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# build FOLDER TARGET...: ninja's own one-line progress on a terminal, a quiet build elsewhere.
build() {
  local folder=$1
  shift
  if [ -t 1 ]; then
    ninja -C "$folder" -j "$jobs" "$@"
  else
    ninja -C "$folder" -j "$jobs" --quiet "$@"
  fi
}
