//! Sessions and batches.
mod support;
use support::*;
use waveinfer::*;

#[test]
fn an_answer_is_the_events_of_decode_up_to_the_one_that_ends_it() {
    let mut session = session_with(30);
    let mut fork = session.fork().unwrap();
    let by_hand: Vec<_> = (0..40).map(|_| session.decode().unwrap().to_owned()).collect();
    let answer: Vec<_> = fork.answer().take(40).map(Result::unwrap).collect();
    let last = by_hand.iter().position(|event| event.kind.is_last());
    assert_eq!(answer, by_hand[..last.map_or(40, |last| last + 1)]);
}

#[test]
fn an_answer_stops_at_an_error() {
    let mut session = Session::new(model()).unwrap();
    let mut answer = session.answer();
    assert_eq!(answer.next().unwrap().unwrap_err().kind(), ErrorKind::State);
    assert!(answer.next().is_none());
}

#[test]
fn logits_and_accept_are_decode_with_a_sampler_of_ones_own() {
    let mut session = session_with(30);
    let mut plain = session.fork().unwrap();
    for _ in 0..10 {
        let logits = session.logits().unwrap();
        let best = (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        let accepted = session.accept(best as Token).unwrap();
        assert_eq!(accepted, plain.decode().unwrap());
    }
}

#[test]
fn logits_go_into_memory_of_the_host() {
    let mut session = session_with(30);
    let logits = session.logits().unwrap();
    let mut to = vec![0.0; logits.len()];
    session.logits_into(&mut to).unwrap();
    assert_eq!(to, logits);
    expect(ErrorKind::Argument, "capacity", session.logits_into(&mut to[1..]));
    expect(ErrorKind::Argument, "logits", session.logits_into(&mut []));
}

#[test]
fn a_prefill_gives_the_logits_of_all_its_tokens() {
    let vocab = model().info().unwrap().vocab as usize;
    let (tokens, mut logits) = (some_tokens(20, 1), vec![0.0; 20 * vocab]);
    let mut session = Session::new(model()).unwrap();
    session.prefill_with(&tokens, PrefillOptions::new().logits(&mut logits)).unwrap();
    assert_eq!(session.logits().unwrap(), logits[19 * vocab..]);
    let short = PrefillOptions::new().logits(&mut logits[1..]);
    expect(ErrorKind::Argument, "logits", session.prefill_with(&tokens, short));
}

#[test]
fn a_fork_goes_on_by_itself_on_another_thread() {
    let mut session = session_with(300);
    let mut fork = session.fork().unwrap();
    let forked = std::thread::spawn(move || decode(&mut fork, 20));
    assert_eq!(decode(&mut session, 20), forked.join().unwrap());
}

#[test]
fn a_fork_under_another_policy_reads_the_same_tokens() {
    let session = session_with(3000);
    let mut full = SessionOptions::new().policy(Policy::full()).fork(&session).unwrap();
    assert_eq!(full.tokens().unwrap(), session.tokens().unwrap());
    full.decode().unwrap();
    full.decode().unwrap();
    assert_eq!(full.stats().unwrap().dropped_clusters, 0);
    let f32 = SessionOptions::new().kv_type(KvType::F32);
    expect(ErrorKind::Argument, "kv_type", f32.fork(&session));
}

#[test]
fn a_truncated_session_answers_as_it_did() {
    let mut session = session_with(200);
    let first = decode(&mut session, 10);
    session.truncate(200).unwrap();
    assert_eq!(decode(&mut session, 10), first);
    expect(ErrorKind::Argument, "211", session.truncate(211));
}

#[test]
fn a_session_comes_back_from_a_file_and_from_a_reader() {
    let folder = Folder::new("saved");
    let path = folder.file("session");
    let mut session = session_with(2500);
    session.save(&path).unwrap();
    let mut bytes = Vec::new();
    session.save_to(&mut bytes).unwrap();
    assert_eq!(bytes, std::fs::read(&path).unwrap());
    assert_eq!(bytes.len() as u64, session.saved_bytes().unwrap());

    let mut loaded = Session::load(model(), &path).unwrap();
    let length = bytes.len() as u64;
    let mut read = SessionOptions::new().load_from(model(), bytes.as_slice(), length).unwrap();
    assert_eq!(loaded.tokens().unwrap(), session.tokens().unwrap());
    let answer = decode(&mut session, 10);
    assert_eq!(decode(&mut loaded, 10), answer);
    assert_eq!(decode(&mut read, 10), answer);

    let other = SessionOptions::new().policy(Policy::full());
    expect(ErrorKind::Mismatch, "", other.load(model(), &path));
    bytes[length as usize / 2] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    expect(ErrorKind::Format, "", Session::load(model(), &path));
    let torn = SessionOptions::new().load_from(model(), &bytes[..1000], length);
    expect(ErrorKind::Io, "", torn);
    expect(ErrorKind::Io, "", Session::load(model(), folder.file("nothing")));
    expect(ErrorKind::Io, "", session.save(folder.file("no/folder")));
}

#[test]
fn sampling_is_the_seeds_and_can_be_set_anew() {
    let sampling = Sampling::new().temperature(0.9).top_k(40).top_p(0.95).min_p(0.01).seed(7);
    let mut session = SessionOptions::new().sampling(sampling.clone()).create(model()).unwrap();
    session.prefill(&some_tokens(30, 1)).unwrap();
    let first = decode(&mut session, 20);
    session.truncate(30).unwrap();
    session.set_sampling(&sampling).unwrap();
    assert_eq!(decode(&mut session, 20), first);
    session.truncate(30).unwrap();
    session.set_sampling(&sampling.seed(8)).unwrap();
    assert_ne!(decode(&mut session, 20), first);
    let penalised = Sampling::new().repetition_penalty(1.3).repetition_window(32);
    session.set_sampling(&penalised).unwrap();
    session.decode().unwrap();
}

#[test]
fn a_bias_forbids_a_token_or_asks_for_it() {
    let mut session = session_with(20);
    let best = session.fork().unwrap().decode().unwrap().token.unwrap();
    session.set_sampling(&Sampling::new().logit_bias(best, f32::NEG_INFINITY)).unwrap();
    assert_ne!(session.decode().unwrap().token, Some(best));
    session.set_sampling(&Sampling::new().logit_bias(5, 1e6).logit_bias(6, 2e6)).unwrap();
    assert_eq!(session.decode().unwrap().token, Some(6));
    let beyond = Sampling::new().logit_bias(1 << 30, 1.0);
    expect(ErrorKind::Argument, "1073741824", session.set_sampling(&beyond));
    assert_eq!(session.decode().unwrap().token, Some(6), "what failed to be set has changed nothing");
}

#[test]
fn a_stop_string_ends_an_answer_and_is_not_told() {
    let mut session = Session::new(model()).unwrap();
    session.append_text("Once", TokenizeFlags::ADD_BOS).unwrap();
    let text: String = session.fork().unwrap().answer().take(20).map(|event| event.unwrap().text).collect();
    let stop = text.get(8..14).unwrap();
    session.set_sampling(&Sampling::new().stop("\u{1}never").stop(stop)).unwrap();
    let events: Vec<_> = session.answer().map(Result::unwrap).collect();
    assert_eq!(events.last().unwrap().kind, EventKind::Stop);
    let told: String = events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(told, text[..text.find(stop).unwrap()]);
}

#[test]
fn events_list_the_likeliest_tokens() {
    let mut session = session_with(20);
    session.set_sampling(&Sampling::new().top_logprobs(4)).unwrap();
    let logits = session.logits().unwrap();
    let event = session.decode().unwrap();
    assert_eq!(event.top.len(), 4);
    assert_eq!(Some(event.top[0].token), event.token);
    assert_eq!(event.top[0].logprob, event.logprob);
    assert!(event.top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    assert!((f64::from(event.logprob) + sum.ln()).abs() < 1e-3);
}

#[test]
fn text_is_bytes_whatever_they_are() {
    let text = "naïve — 漢字 🌊\0<|end|>\r\n";
    let tokens = model().tokenize(text, TokenizeFlags::NONE).unwrap();
    assert_eq!(model().detokenize(&tokens, false).unwrap(), text.as_bytes());
    let mut session = Session::new(model()).unwrap();
    session.append_text(text, TokenizeFlags::NONE).unwrap();
    assert_eq!(session.tokens().unwrap(), tokens);
    let broken = b"a\xff\0\xfeb";
    let tokens = model().tokenize(broken, TokenizeFlags::NONE).unwrap();
    assert_eq!(model().detokenize(&tokens, false).unwrap(), broken);
    assert!(model().tokenize("", TokenizeFlags::NONE).unwrap().is_empty());
    session.append_text("", TokenizeFlags::NONE).unwrap();
    session.prefill(&[]).unwrap();
}

#[test]
fn events_are_whole_code_points() {
    let text = "漢字 🌊 é";
    let mut session = Session::new(model()).unwrap();
    session.append_text("x", TokenizeFlags::ADD_BOS).unwrap();
    let mut told = String::new();
    for token in model().tokenize(text, TokenizeFlags::NONE).unwrap() {
        told += session.accept(token).unwrap().text;
    }
    assert_eq!(told, text);
}

#[test]
fn a_batch_gives_every_session_the_token_that_it_gets_alone() {
    let mut sessions: Vec<_> = (1..6).map(|i| session_with(i * 40)).collect();
    let mut forks: Vec<_> = sessions.iter().map(|session| session.fork().unwrap()).collect();
    for _ in 0..5 {
        let events = decode_batch(&mut sessions, None).unwrap();
        assert_eq!(events.len(), 5);
        for (event, fork) in events.iter().zip(&mut forks) {
            let alone = fork.decode().unwrap();
            assert_eq!((event.kind, event.token, event.text), (alone.kind, alone.token, alone.text));
        }
    }
    assert!(decode_batch([], None).unwrap().is_empty());
    let mut empty = Session::new(model()).unwrap();
    let [first, ..] = sessions.as_mut_slice() else { unreachable!() };
    let before = first.token_count().unwrap();
    let failed = decode_batch([&mut *first, &mut empty], None).map(|events| events.len());
    expect(ErrorKind::State, "sessions[1]: ", failed);
    assert_eq!(first.token_count().unwrap(), before);
}

#[test]
fn everything_can_be_dropped_in_any_order() {
    let mut random = Random::new("everything_can_be_dropped_in_any_order");
    for _ in 0..30 {
        let runtime = RuntimeOptions::new().threads(1).create().unwrap();
        let model = Model::open(&runtime, MODEL).unwrap();
        let mut session = Session::new(&model).unwrap();
        session.prefill(&some_tokens(10, 1)).unwrap();
        let (fork, reader) = (session.fork().unwrap(), session.stats_reader());
        let kv = Kv::new(&runtime, KvShape { layers: 1, query_heads: 1, kv_heads: 1, head_dim: 8 }).unwrap();
        let task = TaskOptions::new().prompt(some_tokens(500, 2)).submit(session.fork().unwrap()).unwrap();
        let canceller = task.canceller();
        let mut things: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(runtime.clone()),
            Box::new(runtime),
            Box::new(model),
            Box::new(session),
            Box::new(fork),
            Box::new(reader),
            Box::new(kv),
            Box::new(task),
            Box::new(canceller),
        ];
        while !things.is_empty() {
            drop(things.swap_remove(random.below(things.len() as u64) as usize));
        }
    }
}

#[test]
fn statistics_are_read_by_other_threads_meanwhile() {
    let mut session = session_with(10);
    let reader = session.stats_reader();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            while reader.stats().unwrap().tokens < 3010 {
                std::thread::yield_now();
            }
        });
        session.prefill(&some_tokens(3000, 1)).unwrap();
        reading.join().unwrap();
    });
    decode(&mut session, 3);
    let stats = session.stats().unwrap();
    assert_eq!((stats.tokens, stats.prefill_tokens, stats.decode_steps), (3013, 3010, 2));
    assert!(stats.segments > 0 && stats.kv_bytes > stats.index_bytes && stats.index_bytes > 0);
    assert!(stats.prefill_time > stats.index_time && stats.decode_time >= stats.attend_time);
    drop(session);
    assert_eq!(reader.stats().unwrap(), stats);
}
