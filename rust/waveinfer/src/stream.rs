use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::{FusedStream, Stream};

use crate::error::Result;
use crate::event::OwnedEvent;
use crate::task::Task;

/// The events of a task as a [`Stream`], for every executor: [`Task::stream`]. Dropped before its end it cancels the
/// task.
///
/// ```
/// # fn f(task: waveinfer::Task) {
/// use futures_core::Stream;
///
/// let stream: std::pin::Pin<Box<dyn Stream<Item = waveinfer::Result<waveinfer::OwnedEvent>> + Send>> =
///     Box::pin(task.stream());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct TaskStream {
    task: Task,
}

impl Task {
    /// The events that are still to come. Of the feature `stream`.
    pub fn stream(self) -> TaskStream {
        TaskStream { task: self }
    }
}

impl TaskStream {
    /// The task, to be cancelled or asked.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The task, to go on with.
    pub fn into_task(self) -> Task {
        self.task
    }
}

impl Stream for TaskStream {
    type Item = Result<OwnedEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // First, so that nothing is missed that comes after the poll.
        self.task.set_waker(context.waker());
        let event = self.task.poll().map(|event| event.map(|event| event.to_owned()));
        match event.transpose() {
            Some(event) => Poll::Ready(Some(event)),
            None if self.task.has_ended() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl FusedStream for TaskStream {
    fn is_terminated(&self) -> bool {
        self.task.has_ended()
    }
}
