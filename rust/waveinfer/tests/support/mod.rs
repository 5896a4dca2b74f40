//! What the tests share: one runtime with the sample model, prompts, and random numbers that say their seed.
#![allow(dead_code)]

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::OnceLock;

use waveinfer::{Error, ErrorKind, Model, Result, Runtime, RuntimeOptions, Session, Token};

pub const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/model/needle-f16.gguf");

pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| RuntimeOptions::new().threads(2).create().unwrap())
}

pub fn model() -> &'static Model {
    static MODEL_OF: OnceLock<Model> = OnceLock::new();
    MODEL_OF.get_or_init(|| Model::open(runtime(), MODEL).unwrap())
}

pub fn some_tokens(count: usize, seed: i32) -> Vec<Token> {
    (0..count as i32).map(|i| (i * 7 + seed * 31) % 1000 + 100).collect()
}

/// A session that has read some tokens.
pub fn session_with(tokens: usize) -> Session {
    let mut session = Session::new(model()).unwrap();
    session.prefill(&some_tokens(tokens, 1)).unwrap();
    session
}

/// The next tokens of a session.
pub fn decode(session: &mut Session, tokens: usize) -> Vec<Token> {
    (0..tokens).map(|_| session.decode().unwrap().token.unwrap()).collect()
}

pub fn expect<T: std::fmt::Debug>(kind: ErrorKind, about: &str, outcome: Result<T>) -> Error {
    let error = outcome.expect_err(about);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(about), "{error:?} says nothing of {about:?}");
    error
}

/// Runs what panics with `message`, without a report of it on standard error.
pub fn expect_panic<T>(message: &str, call: impl FnOnce() -> T) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(call)) else { panic!("no panic came through") };
    assert_eq!(panic.downcast_ref::<&str>().copied(), Some(message));
}

/// A folder of this test program's own; removed with it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(test: &str) -> Self {
        let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed =
            std::env::var("WAVEINFER_TEST_SEED").map_or_else(|_| clock(), |seed| seed.parse().unwrap());
        println!("{test}: WAVEINFER_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// In [-1, 1).
    pub fn float(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }
}
