//! Ten thousand sessions, forks, tasks and stores that come and go leave nothing behind. A program of its own, for
//! what it measures is the process's.
use std::ops::ControlFlow::Continue;

mod support;
use support::*;
use waveinfer::*;

/// Bytes of this process in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn come_and_go(round: usize) {
    let hook = Sampling::new().stop("never").logit_bias(3, 1.0).logits(|_| Continue(()));
    let mut session = SessionOptions::new().sampling(hook).create(model()).unwrap();
    session.prefill(&some_tokens(4, round as i32)).unwrap();
    session.decode().unwrap();
    let fork = session.fork().unwrap();
    assert!(session.prefill(&[-1]).is_err());
    if round % 50 == 0 {
        let options = TaskOptions::new().max_tokens(2).notify(|| ());
        let mut task = options.submit(session).unwrap();
        task.fd().unwrap();
        task.next_event().unwrap();
        let mut kv =
            Kv::new(runtime(), KvShape { layers: 1, query_heads: 1, kv_heads: 1, head_dim: 8 }).unwrap();
        kv.append(0, &[1.0; 80], &[1.0; 80]).unwrap();
        kv.seal().unwrap();
    }
    drop(fork);
}

#[test]
fn ten_thousand_sessions_leave_nothing_behind() {
    (0..1000).for_each(come_and_go);
    let before = (resident(), threads(), descriptors());
    (0..10_000).for_each(come_and_go);
    let after = (resident(), threads(), descriptors());
    println!("resident before {} kB, after {} kB", before.0 >> 10, after.0 >> 10);
    // 100 bytes a session would be seen; pages that the allocator takes now and then are not.
    assert!(after.0 < before.0 + 1_000_000, "{} kB more", (after.0 - before.0) >> 10);
    assert_eq!((after.1, after.2), (before.1, before.2));
    assert_eq!(runtime().stats().unwrap().sessions, 0);
}
