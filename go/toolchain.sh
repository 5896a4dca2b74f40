# Sourced by go/test.sh and samples/service/test.sh, which set $top, $build and $work: Go of one version, the library
# where it was built, and all that is loaded and compiled in $build/go-cache.

go_version=1.24.13 # the oldest that will do, the same on every system

# Any Go can fetch any other through the module proxy; one as old as Debian 12's leaves it to be made executable.
use_fixed_go() {
  export GOTOOLCHAIN=local GOCACHE=$build/go-cache STATICCHECK_CACHE=$build/go-cache/staticcheck
  export GOPATH=$build/go-cache/path GOMODCACHE=$build/go-cache/path/pkg/mod
  export GOFLAGS="-buildvcs=false -modcacherw" # as Go leaves its modules, a checkout could not be removed
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

# Go's cache knows neither what pkg-config said nor what is in a header outside the module: what was compiled with
# another header would be taken for today's. A flag of its own makes each folder's and each header's another build.
find_library_in() {
  export PKG_CONFIG_PATH=$1
  export CGO_CPPFLAGS
  CGO_CPPFLAGS=-DFOUND_$({ echo "$1"; cat "$top/include/waveinfer.h"; } | cksum | cut -d ' ' -f 1)
}
