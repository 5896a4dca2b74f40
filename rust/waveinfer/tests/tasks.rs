//! Tasks: the tokens of synchronous calls, fetched by polling, waiting, a descriptor or a function; cancelled, failed,
//! dropped; panics carried from the engine's thread.
use std::ops::ControlFlow::Continue;
use std::os::fd::AsRawFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{mpsc, Arc};
use std::time::Duration;

mod support;
use support::*;
use waveinfer::*;

fn task(prompt: usize, max_tokens: u64) -> Task {
    let options = TaskOptions::new().prompt(some_tokens(prompt, 1)).max_tokens(max_tokens);
    options.submit(Session::new(model()).unwrap()).unwrap()
}

fn tokens_of(task: &mut Task) -> Vec<Token> {
    task.events().filter_map(|event| event.unwrap().token).collect()
}

#[test]
fn a_task_gets_the_tokens_of_its_session_alone() {
    let mut tasks: Vec<_> = (1..5).map(|i| task(i * 100, 20)).collect();
    for (i, task) in (1..).zip(&mut tasks) {
        assert_eq!(tokens_of(task), decode(&mut session_with(i * 100), 20));
        let info = task.info().unwrap();
        assert_eq!((info.state, info.answer_tokens), (TaskState::Done, 20));
        assert_eq!((info.prompt_tokens, info.prompt_done), (Some(i as u64 * 100), i as u64 * 100));
        assert!(info.first_token.unwrap() >= info.queued.unwrap());
    }
}

#[test]
fn the_last_event_says_why_and_the_session_goes_on() {
    let mut task = task(50, 3);
    let events: Vec<_> = task.events().map(Result::unwrap).collect();
    assert_eq!(events.len(), 4);
    assert_eq!((events[3].kind, events[3].token), (EventKind::Limit, None));
    assert!(task.next_event().unwrap().is_none() && task.poll().unwrap().is_none());
    let mut session = task.into_session();
    let mut tokens: Vec<_> = events.iter().filter_map(|event| event.token).collect();
    tokens.extend(decode(&mut session, 3));
    assert_eq!(tokens, decode(&mut session_with(50), 6));
}

#[test]
fn a_text_is_tokenised_by_the_engine() {
    let text = "In the beginning\0was — the Word";
    let options = TaskOptions::new().prompt_text(text, TokenizeFlags::ADD_BOS).max_tokens(2).priority(3);
    let mut task = options.submit(Session::new(model()).unwrap()).unwrap();
    tokens_of(&mut task);
    let tokens = task.into_session().tokens().unwrap();
    let prompt = model().tokenize(text, TokenizeFlags::ADD_BOS).unwrap();
    assert_eq!(tokens[..prompt.len()], prompt);
}

#[test]
fn a_refused_session_comes_back() {
    let refused = TaskOptions::new().submit(Session::new(model()).unwrap()).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::State);
    let mut session = refused.into_session();
    session.prefill(&[1, 2]).unwrap();
    let refused = TaskOptions::new().priority(99).submit(session).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::Argument);
    assert_eq!(refused.into_session().token_count().unwrap(), 2);
}

#[test]
fn a_task_is_cancelled_from_another_thread() {
    let mut task = task(60_000, 0);
    let canceller = task.canceller();
    let cancelling = std::thread::spawn(move || canceller.cancel());
    let events: Vec<_> = task.events().map(Result::unwrap).collect();
    assert_eq!(events.last().unwrap().kind, EventKind::Cancelled);
    assert_eq!(task.info().unwrap().state, TaskState::Cancelled);
    cancelling.join().unwrap();
    let mut session = task.into_session();
    assert!(session.token_count().unwrap() < 60_000);
    session.prefill(&[1, 2, 3]).unwrap();
    session.decode().unwrap();
}

#[test]
fn a_session_that_is_taken_back_ends_its_task() {
    let task = task(60_000, 0);
    assert!(!task.wait(Some(Duration::ZERO)).unwrap());
    let mut session = task.into_session();
    session.prefill(&[1]).unwrap();
}

#[test]
fn a_child_process_waits_for_no_engine() {
    extern "C" {
        fn fork() -> i32;
        fn alarm(seconds: u32) -> u32;
        fn _exit(status: i32) -> !;
        fn waitpid(child: i32, status: &mut i32, options: i32) -> i32;
    }
    for take_back in [false, true] {
        // A callback of ours, for whose end who drops the task waits.
        let options = TaskOptions::new()
            .prompt(some_tokens(60_000, 1))
            .sampling(Sampling::new().logits(|_| Continue(())));
        let task = options.submit(Session::new(model()).unwrap()).unwrap();
        // SAFETY: the child allocates at most, which the C library allows it.
        let child = unsafe { fork() };
        if child == 0 {
            // SAFETY: of no arguments that could be wrong.
            unsafe { alarm(20) };
            if take_back {
                drop(task.into_session());
            } else {
                drop(task);
            }
            // SAFETY: as before.
            unsafe { _exit(7) }
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a valid output.
        assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 7 << 8, "it ended by itself");
    }
}

#[test]
fn a_failed_task_says_why() {
    let runtime = RuntimeOptions::new().threads(1).kv_budget_bytes(1_000_000).create().unwrap();
    let model = Model::open(&runtime, MODEL).unwrap();
    let options = TaskOptions::new().prompt(some_tokens(20_000, 1));
    let mut task = options.submit(Session::new(&model).unwrap()).unwrap();
    let events: Vec<_> = task.events().collect();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].as_ref().unwrap_err().kind(), ErrorKind::Budget);
    let info = task.info().unwrap();
    assert_eq!(info.state, TaskState::Failed);
    assert!(info.message.contains("kv_budget_bytes"));
    task.into_session().prefill(&[1]).unwrap();
}

#[test]
fn a_descriptor_is_readable_while_there_are_events() {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        revents: i16,
    }
    extern "C" {
        fn poll(fds: *mut PollFd, count: std::ffi::c_ulong, timeout_ms: i32) -> i32;
    }
    const POLLIN: i16 = 1;
    let mut task = task(100, 5);
    let wanted = decode(&mut session_with(100), 5);
    let mut tokens = Vec::new();
    loop {
        let mut polled = PollFd { fd: task.fd().unwrap().as_raw_fd(), events: POLLIN, revents: 0 };
        // SAFETY: one valid element.
        assert_eq!(unsafe { poll(&mut polled, 1, 60_000) }, 1);
        let Some(event) = task.poll().unwrap() else { continue };
        tokens.extend(event.token);
        if event.kind.is_last() {
            break;
        }
    }
    assert_eq!(tokens, wanted);
}

#[test]
fn a_function_is_told_of_news() {
    let (tell, told) = mpsc::channel();
    let options = TaskOptions::new()
        .prompt(some_tokens(100, 1))
        .max_tokens(5)
        .notify(move || tell.send(()).unwrap_or(()));
    let mut task = options.submit(Session::new(model()).unwrap()).unwrap();
    let mut tokens = Vec::new();
    'told: while told.recv_timeout(Duration::from_secs(60)).is_ok() {
        while let Some(event) = task.poll().unwrap() {
            tokens.extend(event.token);
            if event.kind.is_last() {
                break 'told;
            }
        }
    }
    assert_eq!(tokens, decode(&mut session_with(100), 5));
    drop(task);
    while told.recv().is_ok() {} // ends: the function is gone with its task
}

#[test]
fn a_panic_of_that_function_goes_on_where_the_task_is_polled_and_cancels_it() {
    let options = TaskOptions::new().prompt(some_tokens(100, 1)).notify(|| panic!("told"));
    let mut task = options.submit(Session::new(model()).unwrap()).unwrap();
    while task.info().unwrap().answer_tokens < 2 {
        std::thread::yield_now();
    }
    expect_panic("told", || task.poll().map(|event| event.is_some()));
    task.into_session().decode().unwrap();
}

#[test]
fn a_panic_in_a_logits_callback_ends_its_task_alone_and_goes_on_where_it_is_polled() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let sampling = Sampling::new().logits(move |_| match counted.fetch_add(1, SeqCst) {
        3 => panic!("in the engine"),
        _ => Continue(()),
    });
    let options = TaskOptions::new().prompt(some_tokens(100, 1)).sampling(sampling).max_tokens(30);
    let mut other = task(90, 30);
    let mut task = options.submit(Session::new(model()).unwrap()).unwrap();
    let mut tokens = Vec::new();
    expect_panic("in the engine", || {
        while let Some(event) = task.next_event().unwrap() {
            tokens.extend(event.token);
        }
    });
    assert_eq!(tokens, decode(&mut session_with(100), 3));
    assert_eq!(tokens_of(&mut other).len(), 30);
    assert_eq!(calls.load(SeqCst), 4, "a callback that has panicked is not called again before it is told");
    task.into_session().decode().unwrap();
}

#[test]
fn a_panic_in_one_forks_task_ends_no_other() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let mut session = session_with(100);
    session
        .set_sampling(&Sampling::new().logits(move |_| match counted.fetch_add(1, SeqCst) {
            20 => panic!("in one of two"),
            _ => Continue(()),
        }))
        .unwrap();
    let fork = session.fork().unwrap();
    let submit = |session| TaskOptions::new().max_tokens(30).submit(session).unwrap();
    let (mut panics, wanted) = (0, decode(&mut session_with(100), 30));
    for mut task in [submit(session), submit(fork)] {
        let told = catch_unwind(AssertUnwindSafe(|| tokens_of(&mut task)));
        match told {
            Ok(tokens) => assert_eq!(tokens, wanted),
            Err(panic) => {
                assert_eq!(panic.downcast_ref::<&str>().copied(), Some("in one of two"));
                panics += 1;
            }
        }
    }
    assert_eq!(panics, 1);
}

#[test]
fn what_would_wait_for_the_engine_in_its_callback_is_refused() {
    let place = Arc::new(std::sync::Mutex::new(None::<Task>));
    let (inside, (tell, told)) = (place.clone(), mpsc::channel());
    let sampling = Sampling::new().logits(move |_| {
        if let Some(mut other) = inside.lock().unwrap().take() {
            expect(ErrorKind::State, "waits for the engine", other.wait(None));
            expect(ErrorKind::State, "waits for the engine", other.next_event().map(|_| ()));
            let events: Vec<_> = other.events().take(3).collect();
            assert!(matches!(&events[..], [Err(_)]), "an error ends them");
            tell.send(()).unwrap();
            other.into_session();
        }
        Continue(())
    });
    *place.lock().unwrap() = Some(task(20_000, 3));
    let options = TaskOptions::new().prompt(some_tokens(50, 1)).sampling(sampling).max_tokens(5);
    let mut task = options.submit(Session::new(model()).unwrap()).unwrap();
    told.recv_timeout(Duration::from_secs(60)).expect("the engine waits for itself");
    expect_panic("into_session in a callback, which the engine waits for", || {
        while task.next_event().unwrap().is_some() {}
    });
}

#[test]
fn a_dropped_task_is_cancelled_and_calls_nothing_any_more() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let sampling = Sampling::new().logits(move |_| {
        counted.fetch_add(1, SeqCst);
        Continue(())
    });
    let options = TaskOptions::new().prompt(some_tokens(100, 1)).sampling(sampling);
    let task = options.submit(Session::new(model()).unwrap()).unwrap();
    while calls.load(SeqCst) < 3 {
        std::thread::yield_now();
    }
    drop(task);
    assert_eq!(Arc::strong_count(&calls), 1, "the callback is gone");
    let after = calls.load(SeqCst);
    decode(&mut session_with(100), 20);
    assert_eq!(calls.load(SeqCst), after);
}

#[test]
fn a_task_can_be_dropped_by_what_it_wakes() {
    for callback in [false, true] {
        let place = Arc::new(std::sync::Mutex::new(None::<Task>));
        let (dropping, (tell, told)) = (place.clone(), mpsc::channel());
        let mut options = TaskOptions::new().prompt(some_tokens(50, 1)).notify(move || {
            let task = dropping.lock().unwrap().take();
            if let Some(task) = task {
                drop(task);
                tell.send(()).unwrap();
            }
        });
        if callback {
            options = options.sampling(Sampling::new().logits(|_| Continue(())));
        }
        let runtime = RuntimeOptions::new().threads(1).create().unwrap();
        let model = Model::open(&runtime, MODEL).unwrap();
        let session = Session::new(&model).unwrap();
        drop(model);
        drop(runtime); // so that the last of the runtime goes on the engine's own thread
        let mut locked = place.lock().unwrap();
        *locked = Some(options.submit(session).unwrap());
        drop(locked);
        told.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn a_task_can_be_dropped_by_its_own_logits_callback() {
    let place = Arc::new(std::sync::Mutex::new(None::<Task>));
    let (dropping, (tell, told)) = (place.clone(), mpsc::channel());
    let sampling = Sampling::new().logits(move |_| {
        let task = dropping.lock().unwrap().take();
        if let Some(task) = task {
            drop(task);
            tell.send(()).unwrap();
        }
        Continue(())
    });
    let options = TaskOptions::new().prompt(some_tokens(50, 1)).sampling(sampling);
    let mut locked = place.lock().unwrap();
    *locked = Some(options.submit(Session::new(model()).unwrap()).unwrap());
    drop(locked);
    told.recv_timeout(Duration::from_secs(60)).expect("the engine waits for itself");
    assert_eq!(tokens_of(&mut task(50, 3)).len(), 3);
}

#[test]
fn sampling_of_a_task_stays_with_its_session() {
    let only = |wanted: usize| {
        Sampling::new().logits(move |logits| {
            let forbidden = |token| if token == wanted { 0.0 } else { f32::NEG_INFINITY };
            (0..).zip(logits).for_each(|(token, logit)| *logit = forbidden(token));
            Continue(())
        })
    };
    let mut session = session_with(10);
    session.set_sampling(&only(7)).unwrap();
    let mut task = TaskOptions::new().sampling(only(9)).max_tokens(2).submit(session).unwrap();
    assert_eq!(tokens_of(&mut task), [9, 9]);
    let mut session = task.into_session();
    assert_eq!(decode(&mut session, 2), [9, 9]);
    let mut task = TaskOptions::new().max_tokens(2).submit(session).unwrap();
    assert_eq!(tokens_of(&mut task), [9, 9]);
}
