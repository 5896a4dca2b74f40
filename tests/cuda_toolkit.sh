#!/usr/bin/env bash
# Prints the folder of a CUDA 13 toolkit: the one that $CUDACXX, the path or /usr/local/cuda has, or else one
# made from NVIDIA's wheels on PyPI in the given folder (once; 570 MB to load, 0.9 GB on the disk). Nothing is
# installed for anybody else, and no driver is needed.
#
#   tests/cuda_toolkit.sh FOLDER
set -euo pipefail
folder=${1:?tests/cuda_toolkit.sh: which folder is the toolkit to be made in?}
wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cublas==13.1.0.3 nvidia-cuda-cccl==13.0.85
  nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-nvjitlink==13.0.88
  nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86) # the first ones that there are as wheels

main() {
  local nvcc root
  for nvcc in "${CUDACXX-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [ -x "$nvcc" ] && "$nvcc" --version | grep 'release 13\.' >/dev/null; then
      root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
      echo "$root"
      return
    fi
  done
  root=$folder/nvidia/cu13
  if [ "$(cat "$folder/wheels" 2>/dev/null)" != "${wheels[*]}" ]; then make_toolkit; fi
  echo "$root"
}

# All that is said goes to standard error: standard output is the answer.
make_toolkit() {
  echo "set-up: CUDA toolkit from PyPI (in $folder)" >&2
  rm -rf "$folder"
  mkdir -p "$folder"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-cache-dir \
    --no-deps --only-binary :all: --target "$folder" "${wheels[@]}" >&2 || {
    echo "set-up: the CUDA toolkit's wheels could not be had from PyPI (above); with a CUDA 13 toolkit of your" \
      "own, set CUDACXX to its nvcc" >&2
    return 1
  }
  # What CMake and linkers look for, and wheels can't hold.
  ln -s lib "$folder/nvidia/cu13/lib64"
  local library
  for library in cublas cublasLt cudart; do
    ln -s "lib$library.so.13" "$folder/nvidia/cu13/lib/lib$library.so"
  done
  "$folder/nvidia/cu13/bin/nvcc" --version >&2
  echo "${wheels[*]}" >"$folder/wheels"
}

main
