//! What goes wrong, and how it looks: a kind, a message that names what and where, and everything as it was.
//!   errors MODEL
use std::ffi::OsStr;
use std::process::exit;

use waveinfer::{Cancel, Model, ModelOptions, Result, RuntimeOptions, Session};

fn show<T>(what: &str, outcome: Result<T>) {
    match outcome {
        Ok(_) => println!("{what}\n  OK"),
        Err(error) => println!("{what}\n  {}: {error}", error.kind()),
    }
}

fn go_wrong(model: &OsStr) -> Result<()> {
    // A million bytes for keys and values of all sessions.
    let runtime = RuntimeOptions::new().kv_budget_bytes(1_000_000).create()?;
    let model = Model::open(&runtime, model)?;
    let mut session = Session::new(&model)?;

    show("a file that is not there", Model::open(&runtime, "missing.gguf"));
    show("a file that is no model", ModelOptions::new().open_memory(&runtime, vec![0; 64]));
    show("a token that is none", session.prefill(&[1, 2, 1 << 30]));
    show("an answer to nothing", session.decode());

    let tokens: Vec<_> = (0..20_000).map(|i| 100 + i % 1000).collect();
    show("a prompt beyond the budget", session.prefill(&tokens));

    let cancel = Cancel::new()?;
    cancel.trigger();
    session.set_cancel(Some(&cancel));
    show("a call that was cancelled", session.prefill(&tokens[..200]));
    session.set_cancel(None);
    show("and the session is as it was", session.prefill(&tokens[..200]));
    Ok(())
}

const USAGE: &str = "usage: errors MODEL
Example: errors m.gguf";

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if matches!(arguments.as_slice(), [_, only] if only == "-h" || only == "--help") {
        println!("{USAGE}");
        return;
    }
    let [_, model] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        exit(1);
    };
    if let Err(error) = go_wrong(model) {
        println!("errors\n  {}: {error}", error.kind());
        exit(1);
    }
}
