//! Reads a long document once, then answers several questions about it at the same time, each from a fork.
//!   long_document MODEL DOCUMENT QUESTION...
//! Ctrl-C ends reading and answering. Progress and statistics go to standard error.
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::{stdout, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::Duration;

use waveinfer::{
    Cancel, ChatMessage, ChatOptions, EventKind, Model, ModelOptions, PrefillOptions, Result, Runtime,
    Session, Task, TaskOptions, Token,
};

const MOST_TOKENS: u64 = 128;

static INTERRUPTED: OnceLock<Cancel> = OnceLock::new(); // ends calls
static STOPPED: AtomicBool = AtomicBool::new(false); // asks for the end of tasks

/// Ctrl-C fires a cancel token, which is allowed in a signal handler; cancelling a task is not.
fn cancelled_by_interrupt() -> Result<&'static Cancel> {
    extern "C" fn interrupt(_signal: i32) {
        if let Some(cancel) = INTERRUPTED.get() {
            cancel.trigger();
        }
        STOPPED.store(true, Relaxed);
    }
    extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    }
    const SIGINT: i32 = 2;
    let cancel = Cancel::new()?;
    let cancel = INTERRUPTED.get_or_init(|| cancel);
    // SAFETY: the handler does nothing but an atomic load and two atomic stores.
    unsafe { signal(SIGINT, interrupt) };
    Ok(cancel)
}

/// A user's turn as the model's chat template has it, up to where the answer begins.
fn user_turn(model: &Model, text: &[u8]) -> Result<Vec<Token>> {
    model.chat_tokens(&[ChatMessage::user(text)], &ChatOptions::new().add_generation_prompt(true))
}

fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn print_answer(task: &mut Task) -> Result<(), Box<dyn Error>> {
    loop {
        task.wait(Some(Duration::from_millis(50)))?;
        if STOPPED.load(Relaxed) {
            task.cancel();
        }
        while let Some(event) = task.poll()? {
            print!("{}", event.text);
            stdout().flush()?;
            match event.kind {
                EventKind::Token => {}
                EventKind::Cancelled => return Err("CANCELLED: interrupted".into()),
                _ => return Ok(()),
            }
        }
    }
}

fn ask(model: &OsStr, document: &OsStr, questions: &[OsString]) -> Result<(), Box<dyn Error>> {
    let cancel = cancelled_by_interrupt()?;
    let model = ModelOptions::new().cancel(cancel).open(&Runtime::new()?, model)?;

    // What all these conversations begin with is the document: it is read once.
    let text = [std::fs::read(document)?.as_slice(), b"\n\n"].concat();
    let opening = user_turn(&model, &text)?;
    let about = |question: &OsString| user_turn(&model, &[&text, question.as_bytes()].concat());
    let asked: Vec<_> = questions.iter().map(about).collect::<Result<_>>()?;
    let shared = asked.iter().map(|tokens| common_prefix(&opening, tokens)).min().unwrap_or(opening.len());

    let mut session = Session::new(&model)?;
    session.set_cancel(Some(cancel));
    let reading = PrefillOptions::new().progress(|done, total| {
        eprint!("\rreading: {:3.0} %", 100.0 * done as f64 / total as f64);
        ControlFlow::Continue(())
    });
    session.prefill_with(&opening[..shared], reading)?;
    eprintln!();

    let submit = |tokens: &Vec<Token>| {
        let task = TaskOptions::new().prompt(&tokens[shared..]).max_tokens(MOST_TOKENS);
        Ok(task.submit(session.fork()?)?)
    };
    let mut tasks: Vec<_> = asked.iter().map(submit).collect::<Result<_>>()?;
    for (question, task) in questions.iter().zip(&mut tasks) {
        stdout().write_all(&[question.as_bytes(), b"\n  "].concat())?; // whatever bytes they are
        print_answer(task)?;
        println!();
    }

    let stats = session.stats()?;
    eprintln!(
        "{} tokens read in {:.1} s, {} segments, {:.1} MB of KV cache, {:.1} MB of it index",
        stats.tokens,
        stats.prefill_time.as_secs_f64(),
        stats.segments,
        stats.kv_bytes as f64 / 1e6,
        stats.index_bytes as f64 / 1e6
    );
    Ok(())
}

const USAGE: &str = "usage: long_document MODEL DOCUMENT QUESTION...
Example: long_document m.gguf book.txt 'Who wrote the letter?'";

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if matches!(arguments.as_slice(), [_, only] if only == "-h" || only == "--help") {
        println!("{USAGE}");
        return;
    }
    let (model, document, questions) = match arguments.as_slice() {
        [_, model, document, questions @ ..] if !questions.is_empty() => (model, document, questions),
        _ => {
            eprintln!("{USAGE}");
            exit(1);
        }
    };
    if let Err(error) = ask(model, document, questions) {
        eprintln!("\nlong_document: {error}");
        exit(1);
    }
}
