//! Keeps a session in a file: what was read need not be read again, not even by another process.
//!   save_load MODEL TEXT FILE
//! Reads the text, saves the session, goes on; loads it, goes on from there: the same words.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::exit;

use waveinfer::{Model, Result, Runtime, Session, Token, TokenizeFlags};

const TOKENS: usize = 32;

/// Prints what comes next, and notes its tokens.
fn go_on(session: &mut Session) -> Result<Vec<Option<Token>>> {
    let mut tokens = Vec::new();
    for _ in 0..TOKENS {
        let event = session.decode()?;
        print!("{}", event.text);
        tokens.push(event.token);
    }
    println!();
    Ok(tokens)
}

fn save_and_load(model: &OsStr, text: &OsStr, file: &OsStr) -> Result<()> {
    let model = Model::open(&Runtime::new()?, model)?;
    let mut session = Session::new(&model)?;
    session.append_text(text.as_bytes(), TokenizeFlags::ADD_BOS)?;
    session.save(file)?;
    let before = go_on(&mut session)?;

    let mut loaded = Session::load(&model, file)?;
    println!("loaded: {} tokens", loaded.token_count()?);
    let after = go_on(&mut loaded)?;
    println!("the same tokens: {}", if before == after { "yes" } else { "no" });
    Ok(())
}

const USAGE: &str = "usage: save_load MODEL TEXT FILE
Example: save_load m.gguf 'Once upon a time' story.session";

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if matches!(arguments.as_slice(), [_, only] if only == "-h" || only == "--help") {
        println!("{USAGE}");
        return;
    }
    let [_, model, text, file] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        exit(1);
    };
    if let Err(error) = save_and_load(model, text, file) {
        eprintln!("save_load: {}: {error}", error.kind());
        exit(1);
    }
}
