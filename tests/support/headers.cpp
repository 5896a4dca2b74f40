// Nothing of its own: what tests/CMakeLists.txt precompiles for the tests is compiled with it.
