# Sourced by the bindings' tests: the library as a stranger gets it.

# install_packages BUILD FOLDER: installs it into an empty prefix as a bare `cmake --install` does, into one more with the
# bundled library in its place, and what is in the .tar.gz and in the .deb into two more: FOLDER/plain, FOLDER/prefix,
# FOLDER/tar and FOLDER/deb. $configs are where each has its waveinfer.pc.
install_packages() {
  local build=$1 folder=$2 component=waveinfer kind
  rm -rf "$folder"
  mkdir -p "$folder/tar"
  [ ! -e "$build/bundled/lib" ] || component=bundled
  cmake --install "$build" --prefix "$folder/plain" >/dev/null
  cmake --install "$build" --prefix "$folder/prefix" --component $component >/dev/null
  for kind in TGZ DEB; do
    cpack --config "$build/CPackConfig.cmake" -G $kind -B "$folder/packages" >"$folder/log" 2>&1 ||
      { cat "$folder/log" >&2; return 1; }
  done
  tar -xzf "$folder"/packages/*.tar.gz -C "$folder/tar" --strip-components 1
  dpkg-deb -x "$folder"/packages/*.deb "$folder/deb"
  mapfile -t configs < <(find "$folder"/{plain,prefix,tar,deb} -name waveinfer.pc -printf '%h\n')
  [ ${#configs[@]} = 4 ] || { echo "packages: waveinfer.pc is in ${configs[*]}" >&2; return 1; }
}

# root_of CONFIG: the prefix that a folder of a waveinfer.pc belongs to.
root_of() { (cd "$1/../.." && pwd); }
