//! The feature `stream`: tasks in an executor, here the smallest that there is.
#![cfg(feature = "stream")]
use std::future::poll_fn;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_core::{FusedStream, Stream};

mod support;
use support::*;
use waveinfer::*;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: std::future::Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

async fn next(stream: &mut TaskStream) -> Option<Result<OwnedEvent>> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

fn stream(prompt: usize, max_tokens: u64) -> TaskStream {
    let options = TaskOptions::new().prompt(some_tokens(prompt, 1)).max_tokens(max_tokens);
    options.submit(Session::new(model()).unwrap()).unwrap().stream()
}

#[test]
fn a_stream_gives_the_events_of_its_task() {
    let mut stream = stream(100, 10);
    let mut events = Vec::new();
    block_on(async {
        while let Some(event) = next(&mut stream).await {
            events.push(event.unwrap());
        }
        assert!(next(&mut stream).await.is_none() && stream.is_terminated());
    });
    let tokens: Vec<_> = events.iter().filter_map(|event| event.token).collect();
    assert_eq!(tokens, decode(&mut session_with(100), 10));
    assert_eq!(events.last().unwrap().kind, EventKind::Limit);
    assert_eq!(stream.into_task().into_session().token_count().unwrap(), 110);
}

#[test]
fn streams_go_on_beside_each_other() {
    let mut streams: Vec<_> = (1..4).map(|i| stream(i * 50, 20)).collect();
    let mut counts = [0; 3];
    block_on(poll_fn(|context| {
        let mut pending = false;
        for (stream, count) in streams.iter_mut().zip(&mut counts) {
            loop {
                match Pin::new(&mut *stream).poll_next(context) {
                    Poll::Ready(Some(event)) => *count += i32::from(event.unwrap().token.is_some()),
                    Poll::Ready(None) => break,
                    Poll::Pending => {
                        pending = true;
                        break;
                    }
                }
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }));
    assert_eq!(counts, [20; 3]);
}

#[test]
fn a_cancelled_stream_ends_and_a_failed_one_has_its_error() {
    let mut cancelled = stream(60_000, 0);
    cancelled.task().cancel();
    let event = block_on(next(&mut cancelled)).unwrap().unwrap();
    assert_eq!(event.kind, EventKind::Cancelled);
    assert!(block_on(next(&mut cancelled)).is_none());

    let runtime = RuntimeOptions::new().threads(1).kv_budget_bytes(1_000_000).create().unwrap();
    let model = Model::open(&runtime, MODEL).unwrap();
    let options = TaskOptions::new().prompt(some_tokens(20_000, 1));
    let mut failed = options.submit(Session::new(&model).unwrap()).unwrap().stream();
    assert_eq!(block_on(next(&mut failed)).unwrap().unwrap_err().kind(), ErrorKind::Budget);
    assert!(block_on(next(&mut failed)).is_none());
}

#[test]
fn a_waker_that_panics_harms_nobody_else() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("woken")
        }
    }
    let mut stream = stream(300, 3);
    let waker = Waker::from(Arc::new(Panics));
    let mut context = Context::from_waker(&waker);
    expect_panic("woken", || loop {
        let _ = Pin::new(&mut stream).poll_next(&mut context);
        thread::yield_now();
    });
    stream.into_task().into_session().decode().unwrap();
}
