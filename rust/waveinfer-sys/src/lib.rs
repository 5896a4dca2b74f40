//! The C ABI of libwaveinfer as it is: `include/waveinfer.h` is its manual, and the crate `waveinfer` is what
//! programs use. Constants have the types of the fields and parameters that they go into.
//!
//! # Finding the library
//! 1. `WAVEINFER_BUILD_DIR` names a CMake build folder of the project: its `lib/libwaveinfer.so`;
//! 2. pkg-config knows an installed one;
//! 3. this crate lies in a checkout of the project (a Git dependency does): it is built there, with CMake, which
//!    needs what the project's README lists.
//!
//! With the feature `static` it is `libwaveinfer.a` that is looked for, in a build folder also in `bundled/lib`, and it
//! becomes a part of the program.
//!
//! `cargo run` and `cargo test` find a shared library at run time wherever it lies. A program that is started by
//! other means finds an installed one; for another folder it needs a run path, which the build script of a crate
//! with a direct dependency on this one can ask for:
//!
//! ```text
//! println!("cargo:rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_WAVEINFER_LIBDIR").unwrap());
//! ```
#![no_std]

#[allow(missing_docs, missing_debug_implementations, non_camel_case_types)]
mod bindings;

pub use bindings::*;
