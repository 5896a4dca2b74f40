# Sourced by go/test.sh and samples/service/test.sh, which set $top, $build and $work: Go of one version, and the library
# where it was built.

go_version=1.24.13 # the oldest that will do, the same on every system

# Any Go can fetch any other through the module proxy; one as old as Debian 12's leaves it to be made executable.
use_fixed_go() {
  export GOTOOLCHAIN=local GOFLAGS=-buildvcs=false
  local folder
  folder=$(cd "$work" && go mod download -json "golang.org/toolchain@v0.0.1-go$go_version.linux-$(go env GOARCH)" |
    sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  chmod a+x "$folder"/bin/* "$folder"/pkg/tool/*/*
  export PATH=$folder/bin:$PATH
  unset GOROOT
  go version
}

# As an installed waveinfer.pc, for the library where it was built.
use_build_folder() {
  cat >"$work/waveinfer.pc" <<END
Name: waveinfer
Description: libwaveinfer as it was built
Version: 0
Cflags: -I$top/include
Libs: -L$build/lib -lwaveinfer -Wl,-rpath,$build/lib
END
  find_library_in "$work"
}

# Go's cache does not know what pkg-config said: with a flag of its own, each folder's is another build.
find_library_in() {
  export PKG_CONFIG_PATH=$1
  export CGO_CPPFLAGS
  CGO_CPPFLAGS=-DFOUND_$(cksum <<<"$1" | cut -d ' ' -f 1)
}
