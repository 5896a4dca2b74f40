//! Send and Sync are exactly what the header's thread rules allow.
use std::marker::PhantomData;

use waveinfer::*;

struct Probe<T>(PhantomData<T>);

impl<T: Send> Probe<T> {
    fn is_send(&self) -> bool {
        true
    }
}
impl<T: Sync> Probe<T> {
    fn is_sync(&self) -> bool {
        true
    }
}
/// What a type without them has.
trait Neither {
    fn is_send(&self) -> bool {
        false
    }
    fn is_sync(&self) -> bool {
        false
    }
}
impl<T> Neither for Probe<T> {}

macro_rules! rules {
    ($type:ty) => {{
        let probe = Probe::<$type>(PhantomData);
        (probe.is_send(), probe.is_sync())
    }};
}

const ANY_THREADS: (bool, bool) = (true, true);
const ONE_AT_A_TIME: (bool, bool) = (true, false);

#[test]
fn the_probe_tells_them_apart() {
    assert_eq!(rules!(u8), ANY_THREADS);
    assert_eq!(rules!(std::cell::Cell<u8>), ONE_AT_A_TIME);
    assert_eq!(rules!(std::rc::Rc<u8>), (false, false));
}

#[test]
fn runtimes_models_and_cancel_tokens_are_for_any_number_of_threads() {
    assert_eq!(rules!(Runtime), ANY_THREADS);
    assert_eq!(rules!(Model), ANY_THREADS);
    assert_eq!(rules!(Cancel), ANY_THREADS);
}

#[test]
fn sessions_and_stores_are_for_one_thread_at_a_time() {
    assert_eq!(rules!(Session), ONE_AT_A_TIME);
    assert_eq!(rules!(Kv), ONE_AT_A_TIME);
}

#[test]
fn statistics_tasks_and_errors_are_for_any_number_of_threads() {
    assert_eq!(rules!(StatsReader), ANY_THREADS);
    assert_eq!(rules!(Task), ANY_THREADS);
    assert_eq!(rules!(TaskCanceller), ANY_THREADS);
    assert_eq!(rules!(Error), ANY_THREADS);
    assert_eq!(rules!(OwnedEvent), ANY_THREADS);
    assert_eq!(rules!(Sampling), ANY_THREADS);
    assert_eq!(rules!(SessionOptions), ANY_THREADS);
}
