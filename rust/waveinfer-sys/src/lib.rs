//! The C ABI of libwaveinfer as it is: `include/waveinfer.h` is its manual, and the crate `waveinfer` is what
//! programs use. Constants have the types of the fields and parameters that they go into.
//!
//! # Finding the library
//! 1. `WAVEINFER_BUILD_DIR` names a CMake build folder of the project, or a prefix: its `lib/libwaveinfer.so`;
//! 2. pkg-config knows an installed one;
//! 3. this crate lies in a checkout of the project (a Git dependency does): it is built there, with CMake, which
//!    needs the packages that `samples/setup.sh` names, but for the tests' own (libcmocka-dev, libboost-context-dev).
//!
//! # Starting the program
//! A library of 2 or 3 that the system's loader would not find becomes a part of the program where there is a
//! `libwaveinfer.a` beside it, as all packages and bundled builds have one, and a C++ compiler. So programs start by
//! themselves. The exception is a folder that has `libwaveinfer_cuda.so` too, which is looked for beside the library
//! that opens it. With the feature `static` it is always `libwaveinfer.a`, in a build folder also that of `bundled/lib`.
//!
//! `cargo run` and `cargo test` find a shared library at run time wherever it lies. A program that is started by
//! other means finds one that the loader knows; for another folder it needs a run path. Only the build script of its own
//! crate can ask for it, which takes a direct dependency on this one:
//!
//! ```text
//! println!("cargo:rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_WAVEINFER_LIBDIR").unwrap());
//! ```
#![no_std]

// missing_docs: include/waveinfer.h documents all of it. What it says is written for C and begins with rules that hold for
// every call; cut up by name it would say less.
#[allow(missing_docs, missing_debug_implementations, non_camel_case_types)]
mod bindings;

pub use bindings::*;
