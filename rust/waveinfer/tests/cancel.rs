//! Cancellation of long calls, from other threads and before they begin.
use std::ops::ControlFlow::Continue;
use std::thread;
use std::time::{Duration, Instant};

mod support;
use support::*;
use waveinfer::*;

/// Fires while `call` runs, which must then end soon.
fn cancel_during<T: std::fmt::Debug>(cancel: &Cancel, call: impl FnOnce() -> Result<T>) {
    let (remote, start) = (cancel.clone(), Instant::now());
    let firing = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        remote.trigger();
    });
    expect(ErrorKind::Cancelled, "", call());
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    firing.join().unwrap();
    cancel.reset();
}

#[test]
fn a_token_that_has_fired_ends_every_call_at_once() {
    let folder = Folder::new("cancelled");
    let (mut session, saved) = (session_with(100), folder.file("session"));
    session.save(&saved).unwrap();
    let cancel = Cancel::new().unwrap();
    cancel.trigger();
    expect(ErrorKind::Cancelled, "", ModelOptions::new().cancel(&cancel).open(runtime(), MODEL));
    expect(ErrorKind::Cancelled, "", SessionOptions::new().cancel(&cancel).load(model(), &saved));
    expect(ErrorKind::Cancelled, "", SessionOptions::new().cancel(&cancel).fork(&session));
    session.set_cancel(Some(&cancel));
    expect(ErrorKind::Cancelled, "", session.prefill(&[1, 2, 3]));
    expect(ErrorKind::Cancelled, "", session.append_text("text", TokenizeFlags::NONE));
    expect(ErrorKind::Cancelled, "", session.decode().map(|event| event.to_owned()));
    expect(ErrorKind::Cancelled, "", session.accept(1).map(|event| event.to_owned()));
    expect(ErrorKind::Cancelled, "", session.logits());
    expect(ErrorKind::Cancelled, "", session.save(folder.file("other")));
    expect(ErrorKind::Cancelled, "", session.save_to(Vec::new()));
    assert!(session.answer().next().unwrap().is_err());
    session.set_cancel(None);
    expect(ErrorKind::Cancelled, "", decode_batch([&mut session], Some(&cancel)).map(|events| events.len()));
    assert_eq!(session.token_count().unwrap(), 100);
    session.decode().unwrap();
}

#[test]
fn a_prefill_is_cancelled_from_another_thread_and_changes_nothing() {
    let cancel = Cancel::new().unwrap();
    let mut session = session_with(10);
    session.set_cancel(Some(&cancel));
    let tokens = some_tokens(60_000, 1);
    cancel_during(&cancel, || session.prefill(&tokens));
    assert_eq!(session.token_count().unwrap(), 10);
    session.decode().unwrap();
}

#[test]
fn decoding_is_cancelled_from_another_thread_and_loses_no_token() {
    let cancel = Cancel::new().unwrap();
    let mut session = session_with(500);
    let mut plain = session.fork().unwrap();
    session.set_cancel(Some(&cancel));
    let mut tokens = Vec::new();
    cancel_during(&cancel, || loop {
        tokens.push(session.decode()?.token.unwrap());
        if tokens.len() == 4000 {
            return Ok(());
        }
    });
    tokens.extend(decode(&mut session, 5));
    assert_eq!(tokens, decode(&mut plain, tokens.len()));
}

#[test]
fn an_open_and_a_load_are_cancelled_from_within() {
    let cancel = Cancel::new().unwrap();
    let options = ModelOptions::new().weights(Weights::Copied).cancel(&cancel).progress(|_, _| {
        cancel.trigger();
        Continue(())
    });
    expect(ErrorKind::Cancelled, "", options.open(runtime(), MODEL));
    cancel.reset();

    struct Fires<'a>(&'a Cancel, &'a [u8]);
    impl std::io::Read for Fires<'_> {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            self.0.trigger();
            self.1.read(to)
        }
    }
    let mut saved = Vec::new();
    session_with(5000).save_to(&mut saved).unwrap();
    let bytes = saved.len() as u64;
    let options = SessionOptions::new().cancel(&cancel);
    expect(ErrorKind::Cancelled, "", options.load_from(model(), Fires(&cancel, &saved), bytes));
    cancel.reset();
    options.load_from(model(), saved.as_slice(), bytes).unwrap();
}

#[test]
fn attention_of_a_store_can_be_cancelled() {
    let shape = KvShape { layers: 1, query_heads: 2, kv_heads: 1, head_dim: 8 };
    let mut kv = Kv::new(runtime(), shape).unwrap();
    kv.append(0, &[1.0; 80], &[1.0; 80]).unwrap();
    let cancel = Cancel::new().unwrap();
    cancel.trigger();
    kv.set_cancel(Some(&cancel));
    let mut out = [0.0; 16];
    expect(ErrorKind::Cancelled, "", kv.attend(0, &[1.0; 16], &mut out, None));
    expect(ErrorKind::Cancelled, "", kv.save_to(Vec::new()));
    kv.set_cancel(None);
    kv.attend(0, &[1.0; 16], &mut out, None).unwrap();
}
