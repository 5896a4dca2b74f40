//! What this crate costs over C: the same decode steps, in turns with a loop in C (decode_step.c), which bench.sh
//! builds and names in `DECODE_STEP_C`; and a call that does next to nothing.
use std::ffi::{c_char, c_void, CStr, CString};

use waveinfer::{Model, RuntimeOptions, Session, Token};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/model/needle-f16.gguf");
const PROMPT: usize = 256;
const TURNS: usize = 1500;
const STEPS: usize = 8; // of each turn
const CALLS: u64 = 20_000; // of each turn

extern "C" {
    fn dlopen(path: *const c_char, flags: i32) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
const RTLD_NOW: i32 = 2;

struct InC {
    open: unsafe extern "C" fn(*const c_char, *const Token, u64) -> *const c_char,
    decode: unsafe extern "C" fn(u64, u64, *mut u64) -> i64,
    calls: unsafe extern "C" fn(u64) -> u64,
    now_ns: unsafe extern "C" fn() -> u64,
}

/// One of decode_step.c's functions.
///
/// # Safety
/// F is the type that it has there, a pointer.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    // SAFETY: see above.
    unsafe {
        let found = dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "{name:?} is not there");
        std::mem::transmute_copy(&found)
    }
}

/// The loops in C, with a session that has read the prompt.
fn in_c(prompt: &[Token]) -> InC {
    let path = std::env::var("DECODE_STEP_C").expect("DECODE_STEP_C: see bench.sh");
    let (path, model) = (CString::new(path).unwrap(), CString::new(MODEL).unwrap());
    // SAFETY: the functions have the types that decode_step.c gives them.
    unsafe {
        let library = dlopen(path.as_ptr(), RTLD_NOW);
        assert!(!library.is_null(), "{path:?} does not load");
        let c = InC {
            open: function(library, c"c_open"),
            decode: function(library, c"c_decode"),
            calls: function(library, c"c_calls"),
            now_ns: function(library, c"c_now_ns"),
        };
        let failed = (c.open)(model.as_ptr(), prompt.as_ptr(), prompt.len() as u64);
        assert!(failed.is_null(), "{:?}", CStr::from_ptr(failed));
        c
    }
}

impl InC {
    fn now_ns(&self) -> u64 {
        // SAFETY: takes nothing.
        unsafe { (self.now_ns)() }
    }
}

fn decode(c: &InC, session: &mut Session, ns_out: &mut [u64]) -> i64 {
    let mut sum = 0;
    session.truncate(PROMPT as u64).unwrap();
    for ns in ns_out {
        let start = c.now_ns();
        let event = session.decode().unwrap();
        sum += i64::from(event.token.unwrap()) + event.text.len() as i64;
        *ns = c.now_ns() - start;
    }
    sum
}

/// Nanoseconds of CALLS calls that do next to nothing.
fn calls(c: &InC, session: &Session) -> u64 {
    let start = c.now_ns();
    for _ in 0..CALLS {
        std::hint::black_box(session.token_count().unwrap());
    }
    c.now_ns() - start
}

fn quantile(sorted: &[u64], share: f64) -> f64 {
    sorted[(share * (sorted.len() - 1) as f64) as usize] as f64
}

fn main() {
    let prompt: Vec<Token> = (0..PROMPT as i32).map(|i| 100 + i * 7 % 1000).collect();
    let c = in_c(&prompt);
    let runtime = RuntimeOptions::new().threads(1).create().unwrap();
    let mut session = Session::new(&Model::open(&runtime, MODEL).unwrap()).unwrap();
    session.prefill(&prompt).unwrap();

    let (mut c_ns, mut rust_ns) = (Vec::new(), Vec::new());
    let (mut c_call_ns, mut rust_call_ns) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let mut ns = [[0; STEPS]; 2];
        let sums = [0, 1].map(|place| match (place + turn) % 2 {
            // SAFETY: there is room for the steps.
            0 => unsafe { (c.decode)(PROMPT as u64, STEPS as u64, ns[0].as_mut_ptr()) },
            _ => decode(&c, &mut session, &mut ns[1]),
        });
        assert!(sums[0] == sums[1] && sums[0] >= 0, "the answers differ: {sums:?}");
        c_ns.extend(ns[0]);
        rust_ns.extend(ns[1]);
        if turn % 50 == 0 {
            // SAFETY: takes a number.
            c_call_ns.push(unsafe { (c.calls)(CALLS) } / CALLS);
            rust_call_ns.push(calls(&c, &session) / CALLS);
        }
    }

    // The same step of both, a moment apart.
    let mut over_ns: Vec<i64> = rust_ns.iter().zip(&c_ns).map(|(&rust, &c)| rust as i64 - c as i64).collect();
    over_ns.sort_unstable();
    for ns in [&mut c_ns, &mut rust_ns, &mut c_call_ns, &mut rust_call_ns] {
        ns.sort_unstable();
    }
    println!("{} decode steps each, {PROMPT} tokens before them, one thread; us of its time:", c_ns.len());
    println!("          C     Rust   over C");
    for (name, share) in [("10 %", 0.1), ("25 %", 0.25), ("median", 0.5), ("75 %", 0.75)] {
        let (c, rust) = (quantile(&c_ns, share) / 1e3, quantile(&rust_ns, share) / 1e3);
        println!("{name:6} {c:8.2} {rust:8.2} {:8.2}", rust - c);
    }
    println!("over C, median of the steps' differences: {:.2} us", over_ns[over_ns.len() / 2] as f64 / 1e3);
    let (c, rust) = (quantile(&c_call_ns, 0.0), quantile(&rust_call_ns, 0.0));
    println!(
        "a call that does next to nothing, best of {} rounds: C {c} ns, Rust {rust} ns",
        c_call_ns.len()
    );
}
