# Sourced by the scripts that compare with other people's programs. python_environment sets $python to an
# interpreter with what they need: $PYTHON if that is set, else a virtual environment under build/, made once from PyPI.
# llama-cpp-python compiles llama.cpp for this processor: a quarter of an hour on two cores, the first time.

peer_packages=(numpy gguf jinja2 matplotlib llama-cpp-python sentencepiece tokenizers torch transformers)

# python_environment NAME PACKAGE...
python_environment() {
  local folder=${BUILD_DIR:-$top/build}/$1 name=$1
  shift
  if [ -n "${PYTHON-}" ]; then
    python=$PYTHON
    return 0
  fi
  python=$folder/bin/python
  if [ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ]; then return 0; fi
  echo "set-up: Python packages for $name: $* (in ${folder#"$top"/})"
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
  echo "$*" >"$folder/packages"
}
