//! Finds libwaveinfer, in this order:
//!  1. `WAVEINFER_BUILD_DIR` names a CMake build folder of the project, or a prefix: its lib/libwaveinfer.so;
//!  2. pkg-config knows an installed one;
//!  3. this crate lies in a checkout of the project: it is built there, with CMake.
//!
//! Programs shall start by themselves, and a build script cannot give a run path to those of other crates. So where the
//! loader would not find libwaveinfer.so, 2 and 3 take the libwaveinfer.a beside it, if there is one; with the feature
//! `static` it is that or nothing, for 1 also in bundled/lib.
//!
//! Crates that depend on this one get the folder that the library lies in as `DEP_WAVEINFER_LIBDIR`.

use std::env;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=WAVEINFER_BUILD_DIR");
    let (folder, file) = match env::var_os("WAVEINFER_BUILD_DIR") {
        Some(build) => in_build_folder(Path::new(&build)),
        None => installed().unwrap_or_else(from_checkout),
    };
    println!("cargo:libdir={}", folder.display());
    println!("cargo:rustc-link-search=native={}", folder.display());
    if file == ARCHIVE {
        println!("cargo:rustc-link-lib=static:-bundle=waveinfer");
        for needed in ["stdc++", "m", "pthread", "dl"] {
            println!("cargo:rustc-link-lib=dylib={needed}");
        }
    } else {
        println!("cargo:rustc-link-lib=dylib=waveinfer");
        make_runnable(&folder);
    }
}

const SHARED: &str = "libwaveinfer.so";
const ARCHIVE: &str = "libwaveinfer.a";

fn is_static() -> bool {
    env::var_os("CARGO_FEATURE_STATIC").is_some()
}

/// Whether the linker finds what the archive needs.
fn can_link_archive() -> bool {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let answer = Command::new(compiler).arg("-print-file-name=libstdc++.so").output();
    answer.is_ok_and(|answer| answer.stdout.contains(&b'/')) // it repeats the name of what it does not know
}

/// A folder and what is to be linked of it, which may be replaced there.
fn linked(folder: PathBuf, file: &'static str) -> (PathBuf, &'static str) {
    println!("cargo:rerun-if-changed={}", folder.join(file).display());
    (folder, file)
}

fn in_build_folder(build: &Path) -> (PathBuf, &'static str) {
    let file = if is_static() { ARCHIVE } else { SHARED };
    let folders = ["lib", "bundled/lib"].map(|folder| build.join(folder));
    let found = folders.iter().find(|folder| folder.join(file).exists());
    let Some(folder) = found else {
        panic!("WAVEINFER_BUILD_DIR: there is no {}", folders[0].join(file).display());
    };
    linked(fs::canonicalize(folder).expect("a folder that is there"), file)
}

fn installed() -> Option<(PathBuf, &'static str)> {
    let library = pkg_config::Config::new()
        .atleast_version("0.2")
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("waveinfer")
        .ok()?;
    // Without a -L the linker looks where it always does, and so does the loader.
    let default = || PathBuf::from(pkg_config::get_variable("waveinfer", "libdir").unwrap_or_default());
    let folder = library.link_paths.first().cloned().unwrap_or_else(default);
    let has = |file| folder.join(file).exists();
    if is_static() {
        return has(ARCHIVE).then(|| linked(folder, ARCHIVE));
    }
    // A device's library is looked for beside the shared one.
    let better = has(ARCHIVE) && !has("libwaveinfer_cuda.so") && !loader_knows(&folder) && can_link_archive();
    let file = if better { ARCHIVE } else { SHARED };
    has(file).then(|| linked(folder, file))
}

/// Whether programs find what lies there without a run path: in the loader's own folders, or by its cache.
fn loader_knows(folder: &Path) -> bool {
    let Ok(folder) = fs::canonicalize(folder) else { return false };
    if ["/lib", "/lib64", "/usr/lib", "/usr/lib64"].iter().any(|own| folder == Path::new(own)) {
        return true;
    }
    let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
    let file = folder.join("libwaveinfer.so.2");
    let has = |name: &Path| {
        let entry = name.as_os_str().as_bytes();
        cache.windows(entry.len() + 1).any(|at| at.starts_with(entry) && at.ends_with(&[0]))
    };
    // Where /lib is a link to /usr/lib, the cache has either name.
    has(&file) || file.strip_prefix("/usr").is_ok_and(|rest| has(&Path::new("/").join(rest)))
}

/// A library that needs nothing but the C library where the system has what that is made of, else one that needs
/// the system's shared ones.
fn from_checkout() -> (PathBuf, &'static str) {
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
    let bundled = configure("ON").status().is_ok_and(|status| status.success());
    if !bundled {
        run(&mut configure("OFF"));
    }
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "2".into());
    let archive = is_static() || bundled && can_link_archive();
    let (target, file) = if archive { ("waveinfer_static", ARCHIVE) } else { ("waveinfer", SHARED) };
    run(Command::new("cmake").arg("--build").arg(&build).args(["--target", target, "-j", &jobs]));
    (build.join("lib"), file)
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// `cargo run` and `cargo test` tell the loader of those folders of a build script's that lie in the target
/// folder, and of no others: the library gets a name there.
fn make_runnable(folder: &Path) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if folder.starts_with(&out) || loader_knows(folder) {
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
