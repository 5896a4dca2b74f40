//! A panic in a callback cancels the call and goes on after it; so far nothing of it is seen by C.
use std::cell::Cell;
use std::io;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

mod support;
use support::*;
use waveinfer::*;

#[test]
fn a_panic_in_progress_ends_open_and_goes_on_after_it() {
    let options = || ModelOptions::new().weights(Weights::Copied);
    expect_panic("stop", || options().progress(|_, _| panic!("stop")).open(runtime(), MODEL));
    options().open(runtime(), MODEL).unwrap();
}

#[test]
fn a_panic_in_progress_ends_prefill_and_leaves_the_session_as_it_was() {
    let mut session = session_with(10);
    let calls = Cell::new(0);
    expect_panic("stop", || {
        let options = PrefillOptions::new().chunk_tokens(64).progress(|_, _| {
            calls.set(calls.get() + 1);
            panic!("stop")
        });
        session.prefill_with(&some_tokens(1000, 3), options)
    });
    assert_eq!(calls.get(), 1, "a callback that has panicked is not called again");
    assert_eq!(session.token_count().unwrap(), 10);
    session.decode().unwrap();
}

#[test]
fn progress_that_breaks_ends_the_call_as_cancelled() {
    let mut session = session_with(10);
    let mut told = Vec::new();
    let options = PrefillOptions::new().chunk_tokens(100).progress(|done, total| {
        told.push((done, total));
        if done < 200 {
            Continue(())
        } else {
            Break(())
        }
    });
    expect(ErrorKind::Cancelled, "", session.prefill_with(&some_tokens(1000, 3), options));
    assert_eq!(session.token_count().unwrap(), 10);
    assert!(
        told.windows(2).all(|pair| pair[0].0 <= pair[1].0) && told.iter().all(|&(_, total)| total == 1000)
    );
}

#[test]
fn a_panic_in_a_reader_ends_open_and_load() {
    struct Panics;
    impl io::Read for Panics {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("no more")
        }
    }
    expect_panic("no more", || ModelOptions::new().open_reader(runtime(), Panics, 1000));
    expect_panic("no more", || SessionOptions::new().load_from(model(), Panics, 1000));
}

#[test]
fn a_panic_in_a_writer_ends_save_and_the_next_one_works() {
    struct Panics;
    impl io::Write for Panics {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("no more")
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut session = session_with(100);
    expect_panic("no more", || session.save_to(Panics));
    let mut saved = Vec::new();
    session.save_to(&mut saved).unwrap();
    assert_eq!(saved.len() as u64, session.saved_bytes().unwrap());
}

#[test]
fn a_panic_in_a_logits_callback_ends_decode_and_no_token_is_lost() {
    let mut session = session_with(50);
    let mut plain = session.fork().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let sampling = Sampling::new().logits(move |_| match counted.fetch_add(1, Relaxed) {
        2 => panic!("the third"),
        _ => Continue(()),
    });
    session.set_sampling(&sampling).unwrap();
    let mut tokens = decode(&mut session, 2);
    expect_panic("the third", || session.decode().map(|event| event.to_owned()));
    assert_eq!(session.token_count().unwrap(), 52);
    tokens.extend(decode(&mut session, 2));
    assert_eq!(tokens, decode(&mut plain, 4));
    assert_eq!(calls.load(Relaxed), 5);
}

#[test]
fn a_panic_in_a_batch_ends_it_for_all() {
    let mut sessions = [session_with(20), session_with(30)];
    sessions[1].set_sampling(&Sampling::new().logits(|_| panic!("one of two"))).unwrap();
    expect_panic("one of two", || decode_batch(&mut sessions, None).map(|events| events.len()));
    assert_eq!(sessions[0].token_count().unwrap(), 20);
    sessions[1].set_sampling(&Sampling::new()).unwrap();
    assert_eq!(decode_batch(&mut sessions, None).unwrap().len(), 2);
}

#[test]
fn a_logits_callback_says_what_can_be_sampled_and_forks_inherit_it() {
    let mut session = session_with(20);
    let best = session.fork().unwrap().decode().unwrap().token.unwrap();
    let only = |wanted: usize| {
        Sampling::new().logits(move |logits| {
            for (token, logit) in logits.iter_mut().enumerate() {
                if token != wanted {
                    *logit = f32::NEG_INFINITY;
                }
            }
            Continue(())
        })
    };
    session.set_sampling(&only(777)).unwrap();
    let mut fork = session.fork().unwrap();
    let mut fork_as = SessionOptions::new().policy(Policy::full()).fork(&session).unwrap();
    let mut other = SessionOptions::new().sampling(Sampling::new()).fork(&session).unwrap();
    drop(session);
    assert_eq!(decode(&mut fork, 3), [777; 3]);
    assert_eq!(decode(&mut fork_as, 3), [777; 3]);
    assert_eq!(decode(&mut other, 1), [best]);
    expect(ErrorKind::Cancelled, "", {
        fork.set_sampling(&Sampling::new().logits(|_| Break(()))).unwrap();
        fork.decode().map(|event| event.to_owned())
    });
}

#[test]
fn a_callback_lives_as_long_as_the_last_session_that_may_call_it() {
    let alive = Arc::new(());
    let kept = alive.clone();
    let sampling = Sampling::new().logits(move |_| {
        let _ = &kept;
        Continue(())
    });
    let session = SessionOptions::new().sampling(sampling).create(model()).unwrap();
    let mut fork = session.fork().unwrap();
    drop(session);
    assert_eq!(Arc::strong_count(&alive), 2);
    fork.set_sampling(&Sampling::new()).unwrap();
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_panic_of_one_callback_within_another_goes_through_both_calls() {
    let mut outer = session_with(10);
    let mut inner = session_with(10);
    expect_panic("innermost", || {
        let options = PrefillOptions::new().progress(|_, _| {
            let options = PrefillOptions::new().progress(|_, _| panic!("innermost"));
            inner.prefill_with(&some_tokens(100, 2), options).unwrap();
            Continue(())
        });
        outer.prefill_with(&some_tokens(100, 2), options)
    });
    assert_eq!((outer.token_count().unwrap(), inner.token_count().unwrap()), (10, 10));
}

#[test]
fn the_log_says_what_happens_and_is_given_back_with_the_runtime() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let log = said.clone();
    let runtime = RuntimeOptions::new()
        .threads(1)
        .log(LogLevel::Debug, move |level, message| log.lock().unwrap().push((level, message.to_owned())))
        .create()
        .unwrap();
    let model = Model::open(&runtime, MODEL).unwrap();
    drop(runtime);
    assert_eq!(Arc::strong_count(&said), 2, "what was made from the runtime still logs");
    assert!(!said.lock().unwrap().is_empty());
    drop(model);
    assert_eq!(Arc::strong_count(&said), 1);
}

#[test]
fn a_log_of_a_runtime_that_is_not_made_is_given_back() {
    let alive = Arc::new(());
    let kept = alive.clone();
    let log = move |_: LogLevel, _: &str| drop(kept.clone());
    expect(ErrorKind::Argument, "", RuntimeOptions::new().threads(2000).log(LogLevel::Debug, log).create());
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_panic_in_the_log_goes_on_after_the_call_and_what_that_made_is_gone() {
    let alive = Arc::new(());
    let kept = alive.clone();
    let log = move |_: LogLevel, _: &str| {
        let _ = &kept;
        panic!("logged")
    };
    expect_panic("logged", || RuntimeOptions::new().threads(1).log(LogLevel::Debug, log).create());
    assert_eq!(Arc::strong_count(&alive), 1);
}
