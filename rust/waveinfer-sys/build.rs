//! Finds libwaveinfer, in this order:
//!  1. `WAVEINFER_BUILD_DIR` names a CMake build folder of the project: its lib/libwaveinfer.so;
//!  2. pkg-config knows an installed one;
//!  3. this crate lies in a checkout of the project: it is built there, with CMake.
//!
//! With the feature `static` it is libwaveinfer.a, there or in bundled/lib.
//!
//! Crates that depend on this one get the folder that the library lies in as `DEP_WAVEINFER_LIBDIR`.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=WAVEINFER_BUILD_DIR");
    let folder = match env::var_os("WAVEINFER_BUILD_DIR") {
        Some(build) => in_build_folder(Path::new(&build)),
        None => installed().unwrap_or_else(from_checkout),
    };
    println!("cargo:libdir={}", folder.display());
    println!("cargo:rustc-link-search=native={}", folder.display());
    if is_static() {
        println!("cargo:rustc-link-lib=static:-bundle=waveinfer");
        println!("cargo:rustc-link-lib=dylib=stdc++");
    } else {
        println!("cargo:rustc-link-lib=dylib=waveinfer");
        make_runnable(&folder);
    }
}

fn is_static() -> bool {
    env::var_os("CARGO_FEATURE_STATIC").is_some()
}

fn file_name() -> &'static str {
    if is_static() {
        "libwaveinfer.a"
    } else {
        "libwaveinfer.so"
    }
}

fn in_build_folder(build: &Path) -> PathBuf {
    let folders = ["lib", "bundled/lib"].map(|folder| build.join(folder));
    let found = folders.iter().find(|folder| folder.join(file_name()).exists());
    let Some(folder) = found else {
        panic!("WAVEINFER_BUILD_DIR: there is no {}", folders[0].join(file_name()).display());
    };
    println!("cargo:rerun-if-changed={}", folder.join(file_name()).display());
    fs::canonicalize(folder).expect("a folder that is there")
}

fn installed() -> Option<PathBuf> {
    let library = pkg_config::Config::new()
        .atleast_version("0.2")
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("waveinfer")
        .ok()?;
    // Without a -L the linker looks where it always does, and so does the loader.
    let default = || PathBuf::from(pkg_config::get_variable("waveinfer", "libdir").unwrap_or_default());
    let folder = library.link_paths.first().cloned().unwrap_or_else(default);
    folder.join(file_name()).exists().then_some(folder)
}

/// A library that needs nothing but the C library where the system has what that is made of, else one that needs
/// the system's shared ones.
fn from_checkout() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    assert!(
        top.join("include/waveinfer.h").exists(),
        "libwaveinfer is not installed (pkg-config does not know waveinfer), WAVEINFER_BUILD_DIR is not set, \
         and this crate is not in a checkout of the project that it could be built from"
    );
    for part in ["include", "src", "kernels", "cmake", "CMakeLists.txt"] {
        println!("cargo:rerun-if-changed={}", top.join(part).display());
    }
    let build = out.join("build");
    let configure = |bundled| {
        let mut command = Command::new("cmake");
        command.arg("-S").arg(&top).arg("-B").arg(&build).arg(format!("-DWAVEINFER_BUNDLED={bundled}"));
        command.args(["-DCMAKE_BUILD_TYPE=Release", "-DWAVEINFER_SAMPLES=OFF", "-DBUILD_TESTING=OFF"]);
        command
    };
    if !configure("ON").status().is_ok_and(|status| status.success()) {
        run(&mut configure("OFF"));
    }
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "2".into());
    let target = if is_static() { "waveinfer_static" } else { "waveinfer" };
    run(Command::new("cmake").arg("--build").arg(&build).args(["--target", target, "-j", &jobs]));
    build.join("lib")
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// `cargo run` and `cargo test` tell the loader of those folders of a build script's that lie in the target
/// folder, and of no others: the library gets a name there.
fn make_runnable(folder: &Path) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if folder.starts_with(&out) || folder.starts_with("/usr/lib") || folder.starts_with("/lib") {
        return;
    }
    let names = out.join("lib");
    let _ = fs::remove_dir_all(&names);
    fs::create_dir_all(&names).expect("a folder in OUT_DIR");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libwaveinfer.so") {
            symlink(entry.path(), names.join(entry.file_name())).expect("a symbolic link in OUT_DIR");
        }
    }
    println!("cargo:rustc-link-search=native={}", names.display());
}
