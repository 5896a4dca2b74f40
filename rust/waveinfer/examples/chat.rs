//! A conversation with a model: each line of standard input is a turn, the answer is streamed.
//!   chat MODEL
//! Before each answer the whole conversation is rendered in the model's own chat template; what the session has of
//! it already is kept, the rest is read.
use std::ffi::OsStr;
use std::io::{stdin, stdout, BufRead, Write};
use std::process::exit;

use waveinfer::{ChatMessage, ChatOptions, Model, Result, Runtime, Session};

const MOST_TOKENS: usize = 256;

/// Brings the session to where the assistant's next answer begins.
fn read_conversation(session: &mut Session, turns: &[ChatMessage]) -> Result<()> {
    let wanted = session.model().chat_tokens(turns, &ChatOptions::new().add_generation_prompt(true))?;
    let had = session.tokens()?;
    let same = had.iter().zip(&wanted).take_while(|(had, wanted)| had == wanted).count();
    session.truncate(same as u64)?;
    session.prefill(&wanted[same..])
}

fn answer(session: &mut Session) -> Result<ChatMessage> {
    let mut text = String::new();
    for event in session.answer().take(MOST_TOKENS) {
        let event = event?;
        print!("{}", event.text);
        stdout().flush().expect("standard output");
        text += &event.text;
    }
    println!();
    Ok(ChatMessage::assistant(text))
}

fn chat(model: &OsStr) -> Result<()> {
    let model = Model::open(&Runtime::new()?, model)?;
    let mut session = Session::new(&model)?;
    let mut turns = Vec::new();
    for line in stdin().lock().split(b'\n') {
        turns.push(ChatMessage::user(line.expect("standard input")));
        read_conversation(&mut session, &turns)?;
        turns.push(answer(&mut session)?);
    }
    Ok(())
}

const USAGE: &str = "usage: chat MODEL
Example: chat m.gguf";

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
    if let Err(error) = chat(model) {
        eprintln!("chat: {}: {error}", error.kind());
        exit(1);
    }
}
